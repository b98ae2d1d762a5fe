"""Settings of the data, its preparation, and the model that reads it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core import DataFacts, ModelFacts, too_small


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Bytes of texts."""

    folder: str = ""
    """A folder of `recipe prepare new_plugin_bytes`; empty: a generated text, to try things out."""
    sequence: int = 64
    """Bytes in a sample."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "sequence"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Preparation of text files as one file of bytes."""

    inputs: tuple[str, ...] = ()
    """Text files."""
    output: str = ""
    """The new folder."""
    overwrite: bool = False
    """Replace the folder ``output``, if it holds an earlier data set and nothing else."""

    def __post_init__(self) -> None:
        missing = [name for name in ("inputs", "output") if not getattr(self, name)]
        if missing:
            raise ValueError("\n".join(f"{name}: expected a path, got nothing" for name in missing))


@dataclass(frozen=True, kw_only=True)
class NextByte:
    """A model that guesses each byte from the one before."""

    hidden: int = 32

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "hidden"):
            raise ValueError("\n".join(problems))


def data_facts(config: Texts) -> DataFacts:
    """Return facts about the files for `recipe check`, without reading the samples."""
    from recipe_new_plugin.files import size_of

    samples, problems = None, []
    if config.folder:
        try:
            samples = size_of(config.folder) // (config.sequence + 1)
        except OSError as error:
            problems = [f"data.folder: {config.folder}: {error.strerror}; make it: recipe prepare new_plugin_bytes"]
    return DataFacts(sequence=config.sequence, vocabulary=256, train_samples=samples, problems=tuple(problems))


def model_facts(config: NextByte, sequence: int) -> ModelFacts:
    """Count an embedding ``256 x h`` and an output ``h x 256``, which keeps its input for backward."""
    h = config.hidden
    return ModelFacts(
        parameters=512 * h + 256,
        flops_per_sample=6.0 * sequence * 256 * h,
        activation_values=sequence * h,
        recomputed_activation_values=sequence * h,
        logits_values=sequence * 256,
        vocabulary=256,
    )
