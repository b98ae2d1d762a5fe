# ruff: noqa: RUF001 - characters that look like others are what makes a text difficult
"""Three ways from text to token ids; all give the ids of Hugging Face's tokenizers, at different speeds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from recipe_core import ConfigError
from recipe_megatron_gpt.tokenizer.cache import key_of, recall, remember
from recipe_megatron_gpt.tokenizer.characters import Differing, Ids, differing
from recipe_megatron_gpt.tokenizer.parts import can_be_cut, ends_white_space, is_long, parts, together
from recipe_megatron_gpt.tokenizer.rank_file import by_ranks

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Way = Literal["gigatoken", "pieces", "plain"]
Encode = Callable[[list[str]], list[bytes]]
"""The token ids of each text, as they stand in a .bin file."""

_THREADS = "TOKENIZERS_PARALLELISM"
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
"""Texts on which tokenizers are most likely to differ."""


def encoder(way: Way, tokenizer: str, typecode: str, add_special_tokens: bool) -> Encode:
    """Make an encoder for ``tokenizer``, the content of a tokenizer.json.

    Args:
        typecode: of the ids in the bytes, as NumPy names it: ``H`` for uint16, ``i`` for int32.
    """
    # One text at a time needs no threads, and handing it to one takes longer than many a text.
    os.environ[_THREADS] = "false"
    if way == "gigatoken":
        encode = _gigatoken(tokenizer, typecode)
    elif way == "pieces":
        encode = _pieces(tokenizer, typecode)
    else:
        encode = _plain(tokenizer, typecode, add_special_tokens)
    return _bounded(encode, cache(lambda: not add_special_tokens and _can_be_cut(load_tokenizer(tokenizer))))


def _bounded(encode: Encode, cuts: Callable[[], bool]) -> Encode:
    """``encode`` for texts of any length: some :data:`parts.LONG` characters at a time, if ``cuts()``."""

    def one(text: str) -> bytes:
        return b"".join(encode([part])[0] for part in parts(text))

    def bounded(texts: list[str]) -> list[bytes]:
        encoded: list[bytes] = []
        for some in together(texts):
            encoded += [one(some[0])] if is_long(some[0]) and cuts() else encode(some)
        return encoded

    return bounded


def choose(engine: str, tokenizer: str, add_special_tokens: bool, texts: list[str]) -> tuple[Way, str]:
    """The fastest way that gives the ids of the library tokenizers, on ``texts`` and on texts made to be difficult.

    Args:
        engine: the setting: ``"auto"``, ``"tokenizers"`` or ``"gigatoken"``.

    Returns:
        The way, and a note for the user where it is not what might have been expected.

    Raises:
        ConfigError: ``engine=gigatoken`` cannot be used here.
    """
    note = ""
    if engine != "tokenizers":
        problem = _gigatoken_problem(tokenizer, add_special_tokens, texts)
        if not problem:
            return "gigatoken", ""
        if engine == "gigatoken":
            raise ConfigError(f"engine: gigatoken {problem}; set engine=tokenizers")
        note = "" if problem == _NOT_INSTALLED else f"gigatoken {problem}; tokenizers is used instead"
    known = not add_special_tokens and splits_at_words(load_tokenizer(tokenizer))
    if known and not _differing("pieces", tokenizer, texts):
        return "pieces", note
    return "plain", note


def _differing(way: Way, tokenizer: str, texts: list[str]) -> str:
    """Message with the number of texts whose ids differ between ``way`` and tokenizers; empty if none do."""
    added = _added(load_tokenizer(tokenizer))[:50]
    samples = [*_TRICKY, *(f"end{token}{token} {token}  {token} begin" for token in added), *texts]
    found, expected = (encoder(one, tokenizer, "i", False)(samples) for one in (way, "plain"))
    differing = sum(mine != ids for mine, ids in zip(found, expected, strict=True))
    return f"gives other ids than tokenizers for {differing} of {len(samples)} texts" if differing else ""


_NOT_INSTALLED = "is not installed (pip install 'recipe-megatron-gpt[gigatoken]')"


def _gigatoken_problem(tokenizer: str, add_special_tokens: bool, texts: list[str]) -> str:
    """Why gigatoken cannot be used, if so."""
    if add_special_tokens:
        return "adds no special tokens, and add_special_tokens=true asks for them"
    try:
        import_module("gigatoken")
        key = key_of("gigatoken agrees", tokenizer, *texts)
        if recall(key) is None:
            if problem := _differing("gigatoken", tokenizer, texts):
                return problem
            remember(key, {})
        return ""
    except ImportError:
        return _NOT_INSTALLED
    except BaseException as error:  # a panic of Rust code is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return f"does not take this tokenizer ({str(error).splitlines()[0] if str(error) else type(error).__name__})"


def _gigatoken(tokenizer: str, typecode: str) -> Encode:
    giga, unlike = load_gigatoken(tokenizer), _unlike(tokenizer)

    @cache
    def library() -> Encode:
        known = splits_at_words(load_tokenizer(tokenizer))
        return _pieces(tokenizer, typecode) if known else _plain(tokenizer, typecode, False)

    def one(text: str) -> bytes:
        if unlike.in_text(text):
            return library()([text])[0]
        ids: bytes = giga.encode(text).astype(typecode).tobytes()
        return ids

    return lambda texts: list(map(one, texts))


def _unlike(tokenizer: str) -> Differing:
    """The characters that gigatoken would split differently.

    Raises:
        ValueError: that cannot be told of this tokenizer.
    """

    def by_library(content: str) -> Ids:
        ids_of = _ids_of(_read(content), False)

        def in_threads(texts: list[str]) -> list[list[int]]:
            os.environ[_THREADS] = "true"
            try:
                return ids_of(texts)
            finally:
                os.environ[_THREADS] = "false"

        return in_threads

    def by_gigatoken(content: str) -> Ids:
        giga = _read_gigatoken(content)
        return lambda texts: [giga.encode(text).tolist() for text in texts]

    found = differing(tokenizer, by_library, by_gigatoken)
    if found is None:
        raise ValueError("nothing tells for which characters its ids would be those of tokenizers")
    return found


def _pieces(tokenizer: str, typecode: str) -> Encode:
    import numpy as np

    from recipe_index.text import Pieces

    pieces, width = Pieces(_ids_of(load_tokenizer(tokenizer), False)), np.dtype(typecode).itemsize
    plain, is_unlike = _plain(tokenizer, typecode, False), ends_white_space(_added(load_tokenizer(tokenizer)))

    def encode(texts: list[str]) -> list[bytes]:
        if any(map(is_unlike, texts)):
            return plain(texts)
        ids, lengths = pieces.encode(texts)
        data, ends = ids.astype(typecode).tobytes(), np.cumsum(lengths) * width
        return [data[end - width * length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]

    return encode


def _plain(tokenizer: str, typecode: str, add_special_tokens: bool) -> Encode:
    import numpy as np

    ids_of = _ids_of(load_tokenizer(tokenizer), add_special_tokens)

    def encode(texts: list[str]) -> list[bytes]:
        return [np.array(ids, dtype=typecode).tobytes() for ids in ids_of(texts)]

    return encode


def _ids_of(tokenizer: Tokenizer, add_special_tokens: bool) -> Ids:
    def ids_of(texts: list[str]) -> list[list[int]]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    return ids_of


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
    if content not in _loaded:
        _loaded.clear()
        _loaded[content] = _read(content)
    return _loaded[content]


def _read(content: str) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(content)


@lru_cache(maxsize=1)
def load_gigatoken(content: str) -> Any:
    """The same, of gigatoken."""
    return _read_gigatoken(content)


def _read_gigatoken(content: str) -> Any:
    return by_ranks(content) or import_module("gigatoken").Tokenizer.from_json(content)


def _can_be_cut(tokenizer: Tokenizer) -> bool:
    return splits_at_words(tokenizer) and can_be_cut(_added(tokenizer))


def _added(tokenizer: Tokenizer) -> list[str]:
    """The tokens that are looked for in a text before it is split."""
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


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
"""Patterns by which Llama 3, Qwen and GPT-4o (and those that follow them) split a text into words."""


def splits_at_words(tokenizer: Tokenizer) -> bool:
    """True if a tokenizer is known never to make a token across the cuts of :class:`recipe_index.text.Pieces`."""
    from recipe_index.text import PIECES

    normalizer, splitter = _parameters(tokenizer.normalizer), _parameters(tokenizer.pre_tokenizer)
    for token in tokenizer.get_added_tokens_decoder().values():
        looks_around = token.lstrip or token.rstrip or token.single_word
        changes = normalizer and token.normalized
        if looks_around or changes or len(PIECES.findall(token.content)) != 1:
            return False
    if splitter.get("type") == "BertPreTokenizer":
        return not normalizer or normalizer["type"] == "BertNormalizer"
    return not normalizer and _is_known(splitter)


def _parameters(part: Any) -> dict[str, Any]:
    """A part of a tokenizer as it stands in a tokenizer.json; empty where there is none."""
    return json.loads(part.__getstate__()) if part is not None else {}


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
