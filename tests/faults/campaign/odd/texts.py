"""Hostile texts, tables and vocabularies: long, odd, packed to explode, or cut."""

from __future__ import annotations

import bz2
import gzip
import random
import zlib
from collections.abc import Callable

ODD = (
    b"", b"\0", b"\0" * 300, b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\x0b\x0c\x1c\x85", b"\xed\xa0\x80", b'"', b'""""',
    b",", b"\t" * 50, b" ", b"a" * 200_000, b"a b " * 50_000, b"9" * 5000, b"-1", b"nan", b"1e999", b"[UNK]",
    b"#version: 0.2", "\u202e\u0000\U0010ffff".encode(), b"{" * 5000, b"\\x41", b"../../etc/passwd",
)  # fmt: skip
BOMB = 1 << 20
"""Bytes that a packed file of less than a hundred grows to. A document of 16 MB is not refused (``max_document``), and
takes the tokenizer 2.3 GB where it is one word of which each letter is a token."""


def lines(chance: random.Random, sound: bytes) -> bytes:
    """Lines, of which one to three are replaced, doubled, taken out, joined or exchanged."""
    found = sound.split(b"\n")
    for _ in range(chance.choice((1, 1, 3))):
        at, other = chance.randrange(len(found)), chance.randrange(len(found))
        what = chance.choice(("odd", "odd", "insert", "double", "lose", "exchange", "more", "cut"))
        if what == "odd":
            found[at] = chance.choice(ODD)
        elif what == "insert":
            place = chance.randrange(len(found[at]) + 1)
            found[at] = found[at][:place] + chance.choice(ODD) + found[at][place:]
        elif what == "double":
            found.insert(at, found[at])
        elif what == "lose" and len(found) > 1:
            del found[at]
        elif what == "exchange":
            found[at], found[other % len(found)] = found[other % len(found)], found[at]
        elif what == "more":
            found[at:at] = [b"word%d" % number for number in range(chance.choice((1000, 50_000)))]
        elif what == "cut":
            found = found[: at + 1]
    return b"\n".join(found)


def text(chance: random.Random, sound: bytes) -> bytes:
    """Lines as :func:`lines` makes them, or no lines at all."""
    whole: tuple[Callable[[], bytes], ...] = (
        lambda: b"\n" * (1 << 20),
        lambda: b"x" * (1 << 20),
        lambda: b"<page>" * 100_000,
        lambda: b"<page><text>" + b"{{" * 100_000 + b"</text></page>",
        lambda: b"<page><text>" + b"[[" * 100_000 + b"]]" * 100_000 + b"</text></page>",
        lambda: b'<!DOCTYPE a [<!ENTITY b "' + b"x" * 1000 + b'">]><mediawiki>' + b"&b;" * 10_000 + b"</mediawiki>",
        lambda: sound.replace(b"<", b"&lt;"),
        lambda: sound.decode().encode("utf-16"),
        lambda: chance.randbytes(1 << 18),
        lambda: sound[: chance.randrange(len(sound))],
    )
    return chance.choice(whole)() if chance.random() < 0.4 else lines(chance, sound)


def packed(chance: random.Random, sound: bytes) -> bytes:
    """A file of gzip or bzip2 that is cut, doubled, ends in garbage, or grows to :data:`BOMB` bytes."""
    pack: Callable[[bytes], bytes] = gzip.compress if sound.startswith(b"\x1f\x8b") else bz2.compress
    plain = (gzip.decompress if pack is gzip.compress else bz2.decompress)(sound)
    choices: tuple[Callable[[], bytes], ...] = (
        lambda: pack(bytes(BOMB)),
        lambda: pack(b"x" * BOMB),
        lambda: pack(b"\n" * (BOMB >> 3)),
        lambda: pack(plain) + pack(plain),
        lambda: pack(plain) + chance.randbytes(chance.choice((1, 10, 5000))),
        lambda: pack(plain) + bytes(chance.choice((1, 512, 1 << 20))),
        lambda: pack(b"") * 20_000,
        lambda: pack(pack(plain)),
        lambda: sound[: chance.randrange(1, len(sound))],
        lambda: sound[:4] + chance.randbytes(len(sound)),
        lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 500_000,
        lambda: zlib.compress(plain),
        lambda: pack(text(chance, plain)),
    )
    return chance.choice(choices)()


def ends(chance: random.Random, sound: bytes) -> bytes:
    """A file with bytes replaced in its first or last four hundred, where headers are."""
    content = bytearray(sound)
    for _ in range(chance.choice((1, 1, 4))):
        at = chance.choice((1, -1)) * chance.randrange(1, min(400, len(content)))
        value = chance.choice((bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", chance.randbytes(4), chance.randbytes(1)))
        content[at : at + len(value)] = value[: len(content[at : at + len(value)])]
    return bytes(content)
