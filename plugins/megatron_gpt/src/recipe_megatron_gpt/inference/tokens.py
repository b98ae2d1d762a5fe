"""The tokenizer of a checkpoint, and the window of its training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core import ConfigError, TrainedModel
from recipe_megatron_gpt.data.corpus import TOKENIZER
from recipe_megatron_gpt.settings import GptIndexed
from recipe_megatron_gpt.tokenizer.vocabulary import known_end, read_vocabulary, size

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Text:
    """Conversion of texts to token ids and back."""

    tokenizer: Tokenizer
    where: str
    """Its origin, for messages."""

    @property
    def size(self) -> int:
        """Upper bound of the ids, excluded."""
        return size(self.tokenizer)

    @property
    def end(self) -> int | None:
        """The id that ends a document; None if it is not known."""
        token = known_end(self.tokenizer)
        return None if token is None else self.tokenizer.token_to_id(token)

    def encode(self, text: str, vocabulary: int) -> list[int]:
        """The ids of ``text`` without special tokens, as ``recipe prepare`` makes them.

        Raises:
            ConfigError: there are none, or one is not below ``vocabulary``, the rows of the model's embedding.
        """
        ids = [int(number) for number in self.tokenizer.encode(text, add_special_tokens=False).ids]
        if not ids:
            raise ConfigError(f"the text {text!r:.40} has no token in {self.where}; give another text")
        if max(ids) >= vocabulary:
            raise ConfigError(
                f"{self.where}: gives token id {max(ids):,}, and the model has {vocabulary:,}; name the tokenizer that "
                "it was trained with: --tokenizer PATH"
            )
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ``ids``, including ends of documents."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text


def text_of(trained: TrainedModel, path: Path | None, accept: str | None = None) -> Text | None:
    """The tokenizer at ``path``, or that of the checkpoint and its data; None if none is known.

    Raises:
        ConfigError: the one at ``path`` differs from the recorded one, and ``accept`` does not accept it.
        DataError: it cannot be read.
    """
    if path is not None:
        tokenizer = read_vocabulary(path)
        trained.require_tokenizer({TOKENIZER: tokenizer.to_str()}, f"--tokenizer {path}", accept)
        return Text(tokenizer, str(path))
    texts: Any = trained.tokenizer()
    if TOKENIZER not in texts:
        return None
    from tokenizers import Tokenizer

    stored = trained.source.folder / TOKENIZER
    if stored.is_file():  # read_vocabulary tries an untrusted file in a separate process first
        return Text(read_vocabulary(stored), str(stored))
    return Text(Tokenizer.from_str(texts[TOKENIZER]), f"the {TOKENIZER} of its data")


def require_text(trained: TrainedModel, path: Path | None, accept: str | None = None) -> Text:
    """As :func:`text_of`, but required.

    Raises:
        ConfigError: no tokenizer is known.
    """
    text = text_of(trained, path, accept)
    if text is not None:
        return text
    if reason := trained.provenance.missing_tokenizer():
        raise ConfigError(f"{trained.path}: {reason}; give it: --tokenizer PATH")
    files = ", ".join(_files(trained)) or "not recorded"
    raise ConfigError(
        f"{trained.path}: no tokenizer is known: none lies beside its tensors, nor where its data were (data.files: "
        f"{files}); name it: --tokenizer PATH"
    )


def window_of(trained: TrainedModel, window: int | None) -> int:
    """``window``, or else the length of the training samples, since later positions are untrained.

    Raises:
        ConfigError: it is longer than the model's positions.
    """
    positions = int(trained.model.config.positions)
    if window is not None and window > positions:
        raise ConfigError(f"--window: expected at most {positions:,}, the positions of the model, got {window:,}")
    data = trained.data.config if trained.data else None
    trained_on = data.sequence if isinstance(data, GptIndexed) else positions
    return window or min(positions, trained_on)


def _files(trained: TrainedModel) -> tuple[str, ...]:
    data = trained.data.config if trained.data else None
    return data.files if isinstance(data, GptIndexed) else ()
