"""Hostile content: pickles, archives, JSON, YAML and binary files that lie, nest, repeat or run code."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

CANARY = "canary"
"""File that code in a pickle or YAML file makes, if it is run."""
EXTREMES = (
    0,
    -1,
    1,
    2,
    255,
    1 << 15,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 32,
    1 << 40,
    (1 << 62) + 1,
    (1 << 63) - 1,
    -(1 << 63),
)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    1 << 70,
    "",
    "x" * 5000,
    "../../etc/passwd",
    "\0",
    "\ud800",
    [],
    [[]],
    {},
    {"": None},
    [1] * 1000,
    "/dev/zero",
    "nan",
)


def global_(module: str, name: str) -> bytes:
    """Opcodes that push a global."""
    return f"c{module}\n{name}\n".encode()


def text(value: str) -> bytes:
    """Opcodes that push a text."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def code_pickle(chance: random.Random, canary: Path) -> bytes:
    """A pickle that makes the file ``canary`` when it is loaded by :mod:`pickle` itself, in one of many ways."""
    touch, python = f"touch {canary}", f"open({str(canary)!r}, 'w').close()"
    calls = {
        ("os", "system"): text(touch),
        ("posix", "system"): text(touch),
        ("builtins", "exec"): text(python),
        ("builtins", "eval"): text(python),
        ("subprocess", "getoutput"): text(touch),
        ("os", "mkdir"): text(str(canary)),
        ("torch.utils.collect_env", "run"): text(touch),
        ("timeit", "timeit"): text(python),
        ("numpy.testing._private.utils", "runstring"): text(python) + b"}",
        ("pathlib", "Path.touch"): text(str(canary)),
        ("pip", "main"): text("--version"),
        ("torch.serialization", "load"): text(str(canary)),
        ("torch.jit", "load"): text(str(canary)),
        ("importlib", "import_module"): text("antigravity"),
    }
    (module, name), argument = chance.choice(list(calls.items()))
    push = chance.choice((global_(module, name), text(module) + text(name) + b"\x93"))
    call = chance.choice(
        (
            push + b"(" + argument + b"tR",
            b"(" + push + argument + b"o",
            push + b"(" + argument + b"t\x81",
            f"({argument.decode('latin1')}i{module}\n{name}\n".encode("latin1"),
        )
    )
    hidden = chance.choice((call, b"}" + text("state") + call + b"s", b"](" + call + b"e", call + b"0}"))
    return b"\x80" + bytes((chance.choice((2, 4)),)) + hidden + b"."


def odd_pickle(chance: random.Random) -> bytes:
    """A pickle that is too deep, too large, circular, cut or of wrong types."""
    many = chance.choice((1_000, 30_000, 300_000))
    count = chance.choice((1 << 31, 1 << 40, (1 << 63) - 1))
    choices: tuple[Callable[[], bytes], ...] = (
        lambda: b"\x80\x02" + b"]" * many + b"a" * (many - 1) + b".",
        lambda: b"\x80\x02" + b"(" * many + b".",
        lambda: b"\x80\x02}q\0" + b"h\0" * many + b".",
        lambda: b"\x80\x04\x8e" + struct.pack("<Q", count) + b"abc.",
        lambda: b"\x80\x04\x8d" + struct.pack("<Q", count) + b"abc.",
        lambda: b"\x80\x04\x96" + struct.pack("<Q", count) + b"abc.",
        lambda: b"\x80\x04\x95" + struct.pack("<Q", count) + b"N.",
        lambda: b"\x80\x02Nr" + struct.pack("<I", chance.choice((1 << 20, 1 << 27, (1 << 32) - 1))) + b".",
        lambda: b"\x80\x02\x8b" + struct.pack("<i", chance.choice((1 << 30, -1))) + b"\x01" * 100 + b".",
        lambda: b"\x80\x02" + b"I" + b"9" * many + b"\n.",
        lambda: b"\x80\x02]q\0" + b"(h\0h\0e" * 10 + b".",
        lambda: b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(40)) + b".",
        lambda: b"\x80\x02" + b"K\x01" * many + b"t" + b".",
        lambda: b"\x80\x05\x97.",
        lambda: b"\x80\x02Q.",
        lambda: b"\x80\x02P" + b"0\n.",
        lambda: pickle.dumps({chance.choice(("model", "state", 1, None)): chance.choice(ODD[:-4]) for _ in range(5)}),
        lambda: pickle.dumps(chance.choice(ODD)),
        lambda: chance.randbytes(chance.choice((1, 50, 5000))),
    )
    return chance.choice(choices)()


def pickled(chance: random.Random, canary: Path) -> bytes:
    """Either of both."""
    return code_pickle(chance, canary) if chance.random() < 0.5 else odd_pickle(chance)


def archive(chance: random.Random, path: Path, canary: Path) -> None:
    """Rewrite a file of torch.save with one record replaced, packed, doubled, renamed or left out."""
    with zipfile.ZipFile(path) as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    name = chance.choice([n for n in records if n.endswith(".pkl")] * len(records) + list(records))
    what = chance.choice(("pickle", "pickle", "bomb", "double", "rename", "lose", "grow", "offset", "comment"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for record, data in records.items():
            if record != name or what in ("offset", "comment"):
                new.writestr(record, data)
            elif what in ("pickle", "double"):
                new.writestr(record, pickled(chance, canary))
                if what == "double":
                    new.writestr(zipfile.ZipInfo(record), data)
            elif what == "bomb":
                new.writestr(record, bytes(chance.choice((1 << 24, 1 << 28))), zipfile.ZIP_DEFLATED)
            elif what == "rename":
                new.writestr(chance.choice(("../../up", "/abs", ".", record.upper(), record + "/")), data)
            elif what == "grow":
                new.writestr(record, data + bytes(1000))
        if what == "comment":
            new.comment = b"PK\5\6" + chance.randbytes(60)
    content = bytearray(buffer.getvalue())
    if what == "offset":  # fields of the central directory, or of its end
        begin = content.rfind(b"PK\1\2" if chance.random() < 0.5 else b"PK\5\6")
        at = begin + chance.randrange(6, 40)
        content[at : at + 4] = struct.pack("<I", chance.choice((0, 0xFFFFFFFF, 0x7FFFFFFF, len(content))))
    path.write_bytes(bytes(content))


def odd_json(chance: random.Random, sound: Any) -> bytes:
    """JSON that is too deep or long, no JSON at all, or the sound one with values replaced."""
    many = chance.choice((1_000, 100_000, 500_000))
    choices: tuple[Callable[[], bytes], ...] = (
        lambda: b"[" * many,
        lambda: b"[" * many + b"]" * many,
        lambda: b'{"a":' * many + b"1" + b"}" * many,
        lambda: b'{"step": ' + b"9" * many + b"}",
        lambda: b'{"step": 1e' + b"9" * 400 + b"}",
        lambda: b'{"a": 1, "a": 2}' * 2,
        lambda: b"\xff\xfe" + b'{"a": 1}',
        lambda: b"\xef\xbb\xbf" + json.dumps(sound).encode(),
        lambda: b'"' + b"\\ud800" * 10 + b'"',
        lambda: json.dumps(chance.choice(ODD)).encode(),
        lambda: b"\0" * 1000,
    )
    if chance.random() < 0.4:
        return chance.choice(choices)()
    return json.dumps(replaced(chance, sound)).encode()


def replaced(chance: random.Random, sound: Any) -> Any:
    """A copy of a tree with one to three values somewhere in it replaced, renamed or taken out."""
    tree = pickle.loads(pickle.dumps(sound))
    for _ in range(chance.choice((1, 1, 3))):
        at = tree
        while isinstance(at, (dict, list)) and at:
            keys: Any = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = chance.choice(keys)
            deeper = at[key]
            if not (isinstance(deeper, (dict, list)) and deeper and chance.random() < 0.8):
                if chance.random() < 0.15:
                    del at[key]
                else:
                    at[key] = chance.choice((*ODD, *EXTREMES))
                break
            at = deeper
    return tree


def odd_yaml(chance: random.Random, sound: str, canary: Path) -> bytes:
    """YAML with bombs of aliases, circles, tags that run code, or a value replaced."""
    many, lines = chance.choice((1_000, 20_000)), sound.splitlines()
    chain = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    merges = "b0: &b0 {k: 1}\n" + "".join(
        f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}\n" for n in range(1, 15)
    )
    tags = (
        f"!!python/object/apply:os.system ['touch {canary}']",
        f"!!python/object/new:os.mkdir ['{canary}']",
        "!!python/name:os.system",
        "!!binary /w==",
        "!!timestamp 2001-99-99",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!unknown x",
        "!!int x",
        "!!float []",
        "!!bool 7",
        "!!null []",
        "2001-13-45",
        "0o" + "7" * 5000,
        "9" * 10_000,
        "1:" * 500 + "1",
        "1_" * 300,
        "0x" + "f" * 5000,
        ".nan",
        "1e999",
        "&x [*x]",
        "&x {a: *x}",
        "? {a: 1}\n  : b",
        "*nowhere",
        "'\\0'",
        '"\\ud800"',
        "[" * many,
        "{a: " * many,
        "- " * many,
        "%YAML 9",
        "---\n---",
        "\t",
        "[1e5, null]",
        "{[1]: 2}",
        "{{}: 1}",
    )
    if chance.random() < 0.15:
        return (chance.choice((chain, merges)) + sound).encode()
    at = chance.randrange(len(lines))
    if chance.random() < 0.1:
        lines[at] = chance.choice(tags)
    else:
        lines[at] = f"{lines[at].partition(':')[0]}: {chance.choice(tags)}"
    return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")


def odd_safetensors(chance: random.Random, sound: bytes) -> bytes:
    """A header that lies about the tensors, or about its own length."""
    length = int.from_bytes(sound[:8], "little")
    header, values = json.loads(sound[8 : 8 + length]), sound[8 + length :]
    what = chance.random()
    if what < 0.2:
        return struct.pack("<Q", chance.choice([n % (1 << 64) for n in EXTREMES])) + sound[8:]
    if what < 0.7:
        name = chance.choice([name for name in header if name != "__metadata__"])
        key = chance.choice(list(header[name]))
        wrong = [chance.choice(EXTREMES) for _ in range(chance.choice((0, 1, 2, 3, 60)))]
        header[name][key] = chance.choice((*ODD, wrong, wrong, wrong, "F64", "BOOL", "F4", "U64"))
        data = json.dumps(header).encode()
    else:
        data = odd_json(chance, header)
    return struct.pack("<Q", len(data)) + data + values


def odd_idx(chance: random.Random, sound: bytes) -> bytes:
    """A .idx file with a field of its header, or of its arrays, replaced."""
    content, head = bytearray(sound), {9: "<Q", 17: "<B", 18: "<Q", 26: "<Q"}
    at = chance.choice((*head, *head, chance.randrange(34, len(content) - 8)))
    code = head.get(at) or chance.choice(("<i", "<q"))
    width = struct.calcsize(code)
    value = chance.choice(EXTREMES) % (1 << (8 * width))
    content[at : at + width] = value.to_bytes(width, "little")
    return bytes(content)


def odd_hdf5(chance: random.Random, path: Path) -> None:
    """Replace one array of a shard by something else."""
    wrong: Mapping[str, Callable[[h5py.File, str], Any]] = {
        "group": lambda file, name: file.create_group(name),
        "empty": lambda file, name: file.__setitem__(name, h5py.Empty("i4")),
        "endless": lambda file, name: file.create_dataset(
            name, (1 << 40, 8), "i4", chunks=(256, 8), compression="gzip"
        ),
        "wide": lambda file, name: file.create_dataset(name, (3, 1 << 40), "i4", chunks=(1, 1 << 20)),
        "large chunk": lambda file, name: file.create_dataset(
            name, (1 << 20, 64), "i4", chunks=(1 << 20, 64), compression="gzip"
        ),
        "device": lambda file, name: file.create_dataset(
            name, (3, 8), "i4", external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)]
        ),
        "other file": lambda file, name: file.__setitem__(name, h5py.ExternalLink(str(path), "/input_ids")),
        "itself": lambda file, name: file.__setitem__(name, h5py.SoftLink(f"/{name}")),
        "nowhere": lambda file, name: file.__setitem__(name, h5py.SoftLink("/nothing")),
        "texts": lambda file, name: file.__setitem__(name, np.array([[b"a"] * 8] * 3, dtype="S1")),
        "references": lambda file, name: file.create_dataset(name, (3, 8), dtype=h5py.ref_dtype),
        "ragged": lambda file, name: file.create_dataset(name, (3,), dtype=h5py.vlen_dtype("i4")),
        "compound": lambda file, name: file.create_dataset(name, (3, 8), dtype=[("a", "i4"), ("b", "f8")]),
        "scalar": lambda file, name: file.__setitem__(name, 7),
        "many dimensions": lambda file, name: file.create_dataset(name, (1,) * 32, "i1"),
        "fractions": lambda file, name: file.__setitem__(name, np.full((3, 8), np.nan)),
        "extremes": lambda file, name: file.__setitem__(
            name, np.full(shape, chance.choice((-1, 1 << 30, -(1 << 31))), "i4")
        ),
        "fewer rows": lambda file, name: file.__setitem__(name, np.zeros((max(shape[0] - 1, 0), *shape[1:]), kind)),
        "no rows": lambda file, name: file.__setitem__(name, np.zeros((0, *shape[1:]), kind)),
        "lost": lambda file, name: None,
    }
    with h5py.File(path, "r+") as file:
        name = chance.choice(sorted(file))
        shape, kind = file[name].shape, file[name].dtype
        del file[name]
        chance.choice(list(wrong.values()))(file, name)
