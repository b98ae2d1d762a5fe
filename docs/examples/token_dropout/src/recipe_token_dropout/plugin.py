"""A filter and a change, for the samples of any dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import DataWrapperSpec, hookimpl


@dataclass(frozen=True, kw_only=True)
class NoRepeats:
    """Samples that repeat themselves."""

    tensor: str = ""
    """The tensor of token ids; empty: the dataset's first one."""
    most: float = 0.5
    """The largest share of a sample that one token may have."""

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1:
            raise ValueError(f"most: expected a share above 0, up to 1, got {self.most}")


@dataclass(frozen=True, kw_only=True)
class TokenDropout:
    """The tokens that are replaced."""

    tensor: str = ""
    """The tensor of token ids; empty: the dataset's first one."""
    share: float = 0.1
    """The probability with which each token is replaced."""
    token: int = 0
    """The token id in its place."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share: expected a probability from 0 to below 1, got {self.share}")


@hookimpl
def register_data_wrappers() -> Iterable[DataWrapperSpec]:
    """The wrappers: ``recipe run RECIPE wrappers=no_repeats,token_dropout wrapper.token_dropout.share=0.2``."""
    yield DataWrapperSpec(
        name="no_repeats",
        build="recipe_token_dropout.wrappers:no_repeats",
        config=NoRepeats,
        filters=True,
        summary="samples that do not repeat one token too often",
    )
    yield DataWrapperSpec(
        name="token_dropout",
        build="recipe_token_dropout.wrappers:token_dropout",
        config=TokenDropout,
        summary="token dropout: some tokens of the input are replaced, others in each epoch",
    )
