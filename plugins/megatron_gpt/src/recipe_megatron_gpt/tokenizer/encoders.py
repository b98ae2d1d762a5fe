# ruff: noqa: RUF001 - characters that look like others are what makes a text difficult
"""Three methods from text to token ids; all give the ids of Hugging Face's tokenizers, at different speeds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from recipe_core import ConfigError
from recipe_megatron_gpt.tokenizer.cache import key_of, recall, remember
from recipe_megatron_gpt.tokenizer.characters import DifferingCharacters, Ids, differing_characters
from recipe_megatron_gpt.tokenizer.parts import can_be_cut, ends_white_space, grouped, is_long, parts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EncodeMethod = Literal["gigatoken", "pieces", "plain"]
Encode = Callable[[list[str]], list[bytes]]
"""The token ids of each text, as bytes of a .bin file."""

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
"""Texts on which libraries are most likely to differ."""


def encoder(method: EncodeMethod, tokenizer: str, typecode: str, add_special_tokens: bool) -> Encode:
    """An encoder for ``tokenizer``, the content of a tokenizer.json.

    Args:
        typecode: NumPy's type code of the ids: ``H`` for uint16, ``i`` for int32.
    """
    # The library's threads take longer than the encoding of a short text.
    os.environ[_THREADS] = "false"
    if method == "gigatoken":
        encode = _gigatoken(tokenizer, typecode)
    elif method == "pieces":
        encode = _pieces(tokenizer, typecode)
    else:
        encode = _plain(tokenizer, typecode, add_special_tokens)
    return _bounded(encode, cache(lambda: not add_special_tokens and _can_be_cut(load_tokenizer(tokenizer))))


def _bounded(encode: Encode, cuts: Callable[[], bool]) -> Encode:
    # Encodes about parts.LONG characters at a time. Long texts are cut if `cuts()`.

    def encode_parts(text: str) -> bytes:
        return b"".join(encode([part])[0] for part in parts(text))

    def bounded(texts: list[str]) -> list[bytes]:
        encoded: list[bytes] = []
        for group in grouped(texts):
            encoded += [encode_parts(group[0])] if is_long(group[0]) and cuts() else encode(group)
        return encoded

    return bounded


def choose(engine: str, tokenizer: str, add_special_tokens: bool, texts: list[str]) -> tuple[EncodeMethod, str]:
    """The fastest method with the ids of the library tokenizers, on ``texts`` and on texts that are difficult to split.

    Args:
        engine: the setting: ``"auto"``, ``"tokenizers"`` or ``"gigatoken"``.

    Returns:
        The method, and a note for the user if it is not the expected one.

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
    splits = not add_special_tokens and splits_at_words(load_tokenizer(tokenizer))
    if splits and not _id_differences("pieces", tokenizer, texts):
        return "pieces", note
    return "plain", note


def _id_differences(method: EncodeMethod, tokenizer: str, texts: list[str]) -> str:
    # message with the number of texts whose ids differ from those of tokenizers; empty if none do
    added = _added(load_tokenizer(tokenizer))[:50]
    samples = [*_TRICKY, *(f"end{token}{token} {token}  {token} begin" for token in added), *texts]
    encoded, expected = (encoder(each, tokenizer, "i", False)(samples) for each in (method, "plain"))
    differing = sum(ids != others for ids, others in zip(encoded, expected, strict=True))
    return f"gives other ids than tokenizers for {differing} of {len(samples)} texts" if differing else ""


_NOT_INSTALLED = "is not installed (pip install 'recipe-megatron-gpt[gigatoken]')"


def _gigatoken_problem(tokenizer: str, add_special_tokens: bool, texts: list[str]) -> str:
    # the reason why gigatoken cannot be used; empty if it can
    if add_special_tokens:
        return "adds no special tokens, and add_special_tokens=true asks for them"
    try:
        import_module("gigatoken")
        key = key_of("gigatoken agrees", tokenizer, *texts)
        if recall(key) is None:
            if problem := _id_differences("gigatoken", tokenizer, texts):
                return problem
            remember(key, {})
        return ""
    except ImportError:
        return _NOT_INSTALLED
    except BaseException as error:  # a panic in Rust is not an Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return f"does not take this tokenizer ({str(error).splitlines()[0] if str(error) else type(error).__name__})"


def _gigatoken(tokenizer: str, typecode: str) -> Encode:
    giga, differing = load_gigatoken(tokenizer), _differing_characters(tokenizer)

    @cache
    def library() -> Encode:
        splits = splits_at_words(load_tokenizer(tokenizer))
        return _pieces(tokenizer, typecode) if splits else _plain(tokenizer, typecode, False)

    def encode(text: str) -> bytes:
        if differing.in_text(text):
            return library()([text])[0]
        ids: bytes = giga.encode(text).astype(typecode).tobytes()
        return ids

    return lambda texts: list(map(encode, texts))


def _differing_characters(tokenizer: str) -> DifferingCharacters:
    """The characters that gigatoken splits differently.

    Raises:
        ValueError: trials cannot tell for this tokenizer.
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

    characters = differing_characters(tokenizer, by_library, by_gigatoken)
    if characters is None:
        raise ValueError("nothing tells for which characters its ids would be those of tokenizers")
    return characters


def _pieces(tokenizer: str, typecode: str) -> Encode:
    import numpy as np

    from recipe_index.text import Pieces

    pieces, width = Pieces(_ids_of(load_tokenizer(tokenizer), False)), np.dtype(typecode).itemsize
    plain, needs_library = _plain(tokenizer, typecode, False), ends_white_space(_added(load_tokenizer(tokenizer)))

    def encode(texts: list[str]) -> list[bytes]:
        if any(map(needs_library, texts)):
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
"""The tokenizer that this process read or wrote last: reading takes a tenth of a second."""


def content_of(tokenizer: Tokenizer) -> str:
    """The content of a tokenizer.json for ``tokenizer``."""
    content: str = tokenizer.to_str()
    _loaded.clear()
    _loaded[content] = tokenizer
    return content


def load_tokenizer(content: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json with this content."""
    if content not in _loaded:
        _loaded.clear()
        _loaded[content] = _read(content)
    return _loaded[content]


def _read(content: str) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(content)


@lru_cache(maxsize=1)
def load_gigatoken(content: str) -> Any:
    """gigatoken's tokenizer of a tokenizer.json with this content."""
    return _read_gigatoken(content)


def _read_gigatoken(content: str) -> Any:
    return import_module("gigatoken").Tokenizer.from_json(content)


def _can_be_cut(tokenizer: Tokenizer) -> bool:
    return splits_at_words(tokenizer) and can_be_cut(_added(tokenizer))


def _added(tokenizer: Tokenizer) -> list[str]:
    # added tokens, which are matched before a text is split
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
    """True if the tokenizer is known to make no token across the cuts of :class:`recipe_index.text.Pieces`."""
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
    # a component as in tokenizer.json; empty for None
    return json.loads(part.__getstate__()) if part is not None else {}


def _is_known(splitter: dict[str, Any]) -> bool:
    # GPT-2's splitter, or another known one followed by the mapping to bytes
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
