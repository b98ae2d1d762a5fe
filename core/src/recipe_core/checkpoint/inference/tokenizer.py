"""File formats of tokenizers, read as tokenizers of Hugging Face's library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from recipe_core.data.tokenizer import require_pair, require_tokenizer
from recipe_core.errors import ConfigError, DataError
from recipe_core.files.documents import read_json, read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<|im_end|>")
"""Tokens that end a document in common vocabularies."""
_PAIR = ("vocab.json", "merges.txt")
"""The files of GPT-2's tokenizer."""
_IN_FOLDER = ("tokenizer.json", "vocab.json", "vocab.txt")


def read_vocabulary(path: Path) -> Tokenizer:
    """The tokenizer in ``path``: a tokenizer.json, vocab.json or merges.txt, a vocab.txt, or a folder with one.

    Truncation and padding, which some tokenizer.json files enable, are disabled, so that no document is cut.

    Raises:
        DataError: a file is missing, damaged, or not a tokenizer.
    """
    path, *others = files_of(path)
    try:
        tokenizer = _read(path)
    except DataError:
        raise
    except Exception as error:  # the library raises Exception itself
        named = " and ".join([str(path), *(other.name for other in others)])
        raise DataError(f"{named}: is no tokenizer that the library tokenizers reads ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json.

    Raises:
        DataError: the file cannot be read, or the library cannot use it.
    """
    from tokenizers import Tokenizer

    return Tokenizer.from_str(require_tokenizer(path))


def files_of(path: Path) -> list[Path]:
    """The files of the tokenizer in ``path``; one of GPT-2's two may be missing.

    Raises:
        DataError: there is none.
    """
    if path.is_dir():
        inside = [path / name for name in _IN_FOLDER if (path / name).is_file()]
        if not inside:
            raise DataError(f"{path}: the folder has none of {', '.join(_IN_FOLDER)}; name the tokenizer's file")
        path = inside[0]
    if not path.is_file():
        raise DataError(f"{path}: not found; tokenizer takes a file, a folder, or `train`")
    if path.name in _PAIR:
        return [path.with_name(name) for name in _PAIR]
    return [path]


def _read(path: Path) -> Tokenizer:
    if path.name in _PAIR:
        return _gpt2(*(path.with_name(name) for name in _PAIR))
    if path.suffix == ".txt":
        return _bert(path)
    content = read_json(path)
    if not isinstance(content, dict) or "model" not in content:
        raise DataError(f"{path}: is no tokenizer.json (it has no key 'model'); GPT-2's files are named vocab.json")
    if content["model"].get("dropout"):
        raise DataError(f"{path}: its ids are random (model.dropout is {content['model']['dropout']}); set it to null")
    return read_tokenizer(path)


def _gpt2(vocabulary: Path, merges: Path) -> Tokenizer:
    # as transformers' GPT2TokenizerFast reads them
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    for path, other in ((vocabulary, merges), (merges, vocabulary)):
        if not path.is_file():
            raise DataError(f"{path}: not found, though {other.name} is there; a byte-level BPE needs both")
    require_pair(vocabulary, merges)
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _mark_special(tokenizer, ("<|endoftext|>",))
    return tokenizer


def _bert(path: Path) -> Tokenizer:
    # as transformers' BertTokenizerFast reads it; without capital letters, the vocabulary is uncased
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces = read_text(path).splitlines()
    if "[UNK]" not in pieces:
        raise DataError(f"{path}: has no line [UNK], so it is no vocabulary of BERT")
    uncased = not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    tokenizer = Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=uncased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    _mark_special(tokenizer, _BERT_SPECIAL)
    return tokenizer


def _mark_special(tokenizer: Tokenizer, names: tuple[str, ...]) -> None:
    # as transformers does, only names that are in the vocabulary
    tokenizer.add_special_tokens([name for name in names if tokenizer.token_to_id(name) is not None])


def size(tokenizer: Tokenizer) -> int:
    """Upper bound of the ids, excluded."""
    tokens: int = tokenizer.get_vocab_size()
    if None not in map(tokenizer.id_to_token, range(tokens)):
        return tokens  # ids without gaps; a copy of the vocabulary would take longer
    return max(tokens, *(number + 1 for number in tokenizer.get_vocab().values()))


def end_of_document(tokenizer: Tokenizer, token: str, source: str = "the vocabulary") -> int:
    """The id of ``token`` in the vocabulary of ``source``.

    Raises:
        ConfigError: the vocabulary has no such token.
    """
    number = tokenizer.token_to_id(token)
    if number is None:
        known = list(_known_ends(tokenizer))
        instead = f"set eod={known[0]}, which it has" if known else "set eod=... to one that it has"
        raise ConfigError(
            f"eod: {source} has no token {token!r}, which is to end each document; {instead}, or append_eod=false"
        )
    return number


def known_end(tokenizer: Tokenizer) -> str | None:
    """The token that ends documents, by its common names; None if there is none."""
    return next(_known_ends(tokenizer), None)


def _known_ends(tokenizer: Tokenizer) -> Iterator[str]:
    return (token for token in _ENDS if tokenizer.token_to_id(token) is not None)
