# ruff: noqa: RUF001 - characters that look like others are what makes a text difficult
"""Three ways from text to token ids; all give the ids of Hugging Face's tokenizers, at different speeds."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from recipe_core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Way = Literal["gigatoken", "words", "plain"]
Encode = Callable[[str], bytes]
"""The token ids of a text, as they stand in a .bin file."""

_TRICKY = (
    "It's 1234567 o'clock, \"isn't\" IT'S they'll (a) [b] {c}-d_e/f\\g",
    "\tTABS\t \tand   spaces  \n\n  lines\r\n \n.end... \u00a0\u2003\u200b\ufeff\u0085\u2028 \u2028 \u00a0x",
    "Zoë’s naïve café — Ⅷ x² ½ ١٢٣ Ελλάδα Москва e\u0301",
    "東京タワー 한국어 עברית हिन्दी ไทย 🤖👩\u200d👩\u200d👧",
    "  leading, trailing  ",
    " ",
    "\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa https://example.org/a?b=c&d=%20 __init__(self) x+=1;",
)
"""Where tokenizers are most likely to differ."""


def encoder(way: Way, tokenizer: str, typecode: str, add_special_tokens: bool) -> Encode:
    """What encodes texts by ``tokenizer``, the content of a tokenizer.json.

    Args:
        typecode: of the ids in the bytes, as the module array names it: ``H`` for uint16, ``i`` for int32.
    """
    # One text at a time needs no threads, and handing it to one takes longer than many a text.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if way == "gigatoken":
        return _gigatoken(tokenizer, typecode)
    if way == "words":
        return _Words(tokenizer, typecode).encode
    return _plain(tokenizer, typecode, add_special_tokens)


def choose(engine: str, tokenizer: str, add_special_tokens: bool, texts: Iterable[str]) -> tuple[Way, str]:
    """The fastest way that gives the ids of the library tokenizers, on ``texts`` and on texts made to be difficult.

    Args:
        engine: the setting: ``"auto"``, ``"tokenizers"`` or ``"gigatoken"``.

    Returns:
        The way, and a note for the user where it is not what might have been expected.

    Raises:
        ConfigError: ``engine=gigatoken`` cannot be used here.
    """
    added = [token["content"] for token in json.loads(tokenizer).get("added_tokens") or ()]
    samples = [*_TRICKY, *(f"end{token}{token} {token} begin" for token in added[:50]), *texts]
    plain = encoder("plain", tokenizer, "i", add_special_tokens)
    expected = [plain(text) for text in samples]
    note = ""
    if engine != "tokenizers":
        problem = _gigatoken_problem(tokenizer, add_special_tokens, samples, expected)
        if not problem:
            return "gigatoken", ""
        if engine == "gigatoken":
            raise ConfigError(f"engine: gigatoken {problem}; set engine=tokenizers")
        note = "" if problem == _NOT_INSTALLED else f"gigatoken {problem}; tokenizers is used instead"
    if not add_special_tokens and splits_at_words(tokenizer):
        encode = encoder("words", tokenizer, "i", False)
        if all(encode(text) == ids for text, ids in zip(samples, expected, strict=True)):
            return "words", note
    return "plain", note


_NOT_INSTALLED = "is not installed (pip install 'recipe-megatron-gpt[gigatoken]')"


def _gigatoken_problem(tokenizer: str, add_special_tokens: bool, samples: list[str], expected: list[bytes]) -> str:
    """Why gigatoken cannot be used, if so."""
    if add_special_tokens:
        return "adds no special tokens, and add_special_tokens=true asks for them"
    try:
        encode = encoder("gigatoken", tokenizer, "i", False)
        differing = sum(encode(text) != ids for text, ids in zip(samples, expected, strict=True))
    except ImportError:
        return _NOT_INSTALLED
    except BaseException as error:  # a panic of Rust code is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return f"does not take this tokenizer ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    return f"gives other ids than tokenizers for {differing} of {len(samples)} texts" if differing else ""


def _gigatoken(tokenizer: str, typecode: str) -> Encode:
    import numpy as np

    giga, dtype = load_gigatoken(tokenizer), np.dtype(typecode)

    def encode(text: str) -> bytes:
        ids: bytes = giga.encode(text).astype(dtype).tobytes()
        return ids

    return encode


def _plain(tokenizer: str, typecode: str, add_special_tokens: bool) -> Encode:
    found = load_tokenizer(tokenizer)

    def encode(text: str) -> bytes:
        (encoding,) = found.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return array(typecode, encoding.ids).tobytes()

    return encode


_loaded: dict[str, Tokenizer] = {}
"""The tokenizer that this process read or wrote last: reading one takes a tenth of a second."""


def content_of(tokenizer: Tokenizer) -> str:
    """The content of a tokenizer.json for ``tokenizer``."""
    content: str = tokenizer.to_str()
    _loaded.clear()
    _loaded[content] = tokenizer
    return content


def load_tokenizer(content: str) -> Tokenizer:
    """The tokenizer in the content of a tokenizer.json."""
    from tokenizers import Tokenizer

    if content not in _loaded:
        _loaded.clear()
        _loaded[content] = Tokenizer.from_str(content)
    return _loaded[content]


@lru_cache(maxsize=1)
def load_gigatoken(content: str) -> Any:
    """The same, of gigatoken."""
    return import_module("gigatoken").Tokenizer.from_json(content)


# Cuts that no token of the tokenizers below ever lies across, so that the pieces can be encoded one by one:
# - before a space with a character other than white space on either side of it: their patterns take a space only as the
#   first character of a word, or in a run of white space, from which they leave the last space to the word after it;
# - between an ASCII letter or digit and one of the punctuation marks here, or a line end: no word goes on with these.
# ASCII on both sides of the second, so that nothing depends on the version of Unicode that a tokenizer knows.
_PIECES = re.compile(
    r"""\ ?[A-Za-z0-9]+(?=[\ \n,.;:!?)"(\-]|\Z)  # most pieces: a word
    |.(?:.*?(?:(?<=[A-Za-z0-9])(?=[\n,.;:!?)"(\-])|(?<=\S)(?=\ )|(?=\ \S)|\Z))  # anything, up to the next cut""",
    re.DOTALL | re.VERBOSE,
)
_LETTERS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = frozenset(
    [
        *(
            rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
            for digits in (r"\p{N}{1,3}", r"\p{N}")
        ),
        rf"{_LETTERS[0]}{_SHORT}?|{_LETTERS[1]}{_SHORT}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}",
    ]
)
"""How Llama 3, Qwen and GPT-4o (and those that follow them) split a text into words."""


def splits_at_words(tokenizer: str) -> bool:
    """Whether a tokenizer (the content of a tokenizer.json) is known never to make a token across our cuts."""
    content = json.loads(tokenizer)
    normalizer, splitter = content.get("normalizer"), content.get("pre_tokenizer") or {}
    for token in content.get("added_tokens") or ():
        looks_around = token["lstrip"] or token["rstrip"] or token["single_word"]
        changes = normalizer is not None and token["normalized"]
        if looks_around or changes or len(_PIECES.findall(token["content"])) != 1:
            return False
    if splitter.get("type") == "BertPreTokenizer":
        return bool(normalizer is None or normalizer["type"] == "BertNormalizer")
    return normalizer is None and _is_known(splitter)


def _is_known(splitter: dict[str, Any]) -> bool:
    """GPT-2's own split, or another known one with the mapping to bytes after it."""
    if splitter.get("type") == "ByteLevel":
        return bool(splitter["use_regex"] and not splitter["add_prefix_space"])
    parts = splitter.get("pretokenizers", [])
    return (
        [part["type"] for part in parts] == ["Split", "ByteLevel"]
        and parts[0]["pattern"].get("Regex") in _PATTERNS
        and parts[0]["behavior"] == "Isolated"
        and not parts[0]["invert"]
        and not parts[1]["use_regex"]
        and not parts[1]["add_prefix_space"]
    )


class _Words(dict[str, bytes]):
    """The ids of pieces that were met: a text is mostly such, and looking them up is much faster than a tokenizer."""

    MOST = 300_000
    """Pieces that are kept, some 60 MB; then all are forgotten, and the frequent ones are soon back."""
    LONGEST = 48
    """Characters of a piece that is kept. A text without spaces, Chinese say, is one long piece that never returns."""

    def __init__(self, tokenizer: str, typecode: str) -> None:
        super().__init__()
        self._encode = _plain(tokenizer, typecode, False)

    def encode(self, text: str) -> bytes:
        if len(self) > self.MOST:
            self.clear()
        return b"".join(map(self.__getitem__, _PIECES.findall(text)))

    def __missing__(self, piece: str) -> bytes:
        ids = self._encode(piece)
        if len(piece) <= self.LONGEST:
            self[piece] = ids
        return ids
