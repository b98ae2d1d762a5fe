"""The tokenizer of a checkpoint, and the window of its training."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.checkpoint.inference.tokenizer import known_end, read_vocabulary, size
from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.errors import ConfigError
from recipe_core.hooks.facts import ModelFacts
from recipe_core.hooks.target import call

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"


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
        ConfigError: the one at ``path`` differs from the recorded one, and ``accept`` does not accept it; the package
            tokenizers is not installed.
        DataError: it cannot be read.
    """
    if find_spec("tokenizers") is None:
        raise ConfigError("texts need the package tokenizers, which is not installed; pip install tokenizers")
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
    raise ConfigError(
        f"{trained.path}: no tokenizer is known: none lies beside its tensors, nor where its data were "
        f"({_data(trained)}); name it: --tokenizer PATH"
    )


def vocabulary_of(trained: TrainedModel) -> int:
    """The rows of the model's embedding: token ids are below.

    Raises:
        ConfigError: the facts of the model do not give it.
    """
    facts = _facts(trained)
    if facts is None or facts.vocabulary is None:
        name = trained.model.spec.name
        raise ConfigError(f"model {name!r}: its facts do not give the vocabulary; its plugin must (Model.facts)")
    return facts.vocabulary


def window_of(trained: TrainedModel, window: int | None) -> int:
    """``window``, or else the length of the training samples, since later positions are untrained.

    Raises:
        ConfigError: it is longer than the model's positions.
    """
    facts = _facts(trained)
    positions = facts.max_sequence if facts else None
    if window is not None and positions is not None and window > positions:
        raise ConfigError(f"--window: expected at most {positions:,}, the positions of the model, got {window:,}")
    chosen = window or trained.sequence or positions
    if chosen is None:
        raise ConfigError(f"{trained.path}: the length of its training samples is not known; name it: --window N")
    return chosen if positions is None else min(chosen, positions)


def _facts(trained: TrainedModel) -> ModelFacts | None:
    spec = trained.model.spec
    facts = call(spec.facts, f"model {spec.name!r}", trained.model.config, 1) if spec.facts else None
    return facts if isinstance(facts, ModelFacts) else None


def _data(trained: TrainedModel) -> str:
    # the dataset, with its settings that are texts, such as paths
    if trained.data is None:
        return "not recorded"
    texts = {name: value for name, value in trained.data.section().items() if value and isinstance(value, str | tuple)}
    return ", ".join(f"{name}={value}" for name, value in texts.items())
