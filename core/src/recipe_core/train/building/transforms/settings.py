"""Settings and checks of the core's own transforms. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recipe_core.hooks.train import Train, too_small


@dataclass(frozen=True, kw_only=True)
class Freeze:
    """Settings of parameters that are not trained."""

    modules: tuple[str, ...] = ()
    """Submodules or parameters that keep their values (``embeddings,blocks.0``); a star stands for any text."""
    trained: tuple[str, ...] = ()
    """Of these, the ones that are trained nevertheless: ``modules=*`` and ``trained=norm`` trains the norm alone."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Settings of low-rank adapters."""

    rank: int = 8
    """Rows of A and columns of B."""
    alpha: float = 16.0
    """The product of B and A is scaled by ``alpha / rank``."""
    dropout: float = 0.0
    """Share of the adapters' inputs that training sets to zero."""
    targets: tuple[str, ...] = ()
    """Linear layers with an adapter: names, or their last parts (``attention.qkv``, ``query``); a star stands for any
    text. Without any, all linear layers of the model's blocks, or of a model without named blocks; not those that
    ``trained`` names."""
    trained: tuple[str, ...] = ()
    """Submodules or parameters that are trained beside the adapters (``classifier``); all others are frozen."""

    def __post_init__(self) -> None:
        problems = list(too_small(self, 1, "rank"))
        if not self.alpha > 0:
            problems.append(f"alpha: expected a number above 0, got {self.alpha}")
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout: expected 0 to below 1, got {self.dropout}")
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def scale(self) -> float:
        """Factor of the product of B and A."""
        return self.alpha / self.rank


def freeze_problems(config: Freeze, train: Train) -> Iterator[str]:
    """Yield a problem if nothing is named."""
    if not config.modules:
        yield "modules: name the submodules to freeze, such as transform.freeze.modules=embeddings,blocks.0"
