"""Prompts from the command line, a file, a pipe, or a terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from recipe_core.errors import ConfigError
from recipe_core.files.documents import DocumentError, parse_json, read_text

STDIN = "-"
_KEYS = ("prompt", "text")


def prompts(texts: Sequence[str], file: Path | None) -> tuple[Iterable[str], bool]:
    """Return the prompts, and True if they are typed at a terminal.

    Args:
        texts: texts; ``-`` alone reads the standard input, a prompt per line; blank lines are skipped. Empty: the
            standard input, too.
        file: a prompt per line, or JSON lines.

    Raises:
        ConfigError: a prompt is empty, a file cannot be read, or there is no prompt.
    """
    if file is not None:
        if texts:
            raise ConfigError("--prompt and --prompts: give one of the two")
        return _from_file(file), False
    if texts and STDIN not in texts:
        return [_non_empty(text, "--prompt") for text in texts], False
    if len(texts) > 1:
        raise ConfigError("--prompt -: reads all prompts from the standard input; give no other beside it")
    if sys.stdin.isatty():
        return _typed(), True
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    numbered = [(number, line) for number, line in enumerate(sys.stdin, 1) if line.strip()]
    lines = [_non_empty(line, f"standard input, line {number}") for number, line in numbered]
    if not lines:
        raise ConfigError("--prompt: expected a text, and the standard input is empty; give --prompt TEXT")
    return lines, False


def _from_file(path: Path) -> list[str]:
    try:
        lines = read_text(path).splitlines()
    except (OSError, DocumentError) as error:
        raise ConfigError(f"--prompts: {path}: cannot be read ({error})") from error
    if not lines:
        raise ConfigError(f"--prompts: {path}: expected a prompt in each line, and it is empty")
    as_json = path.suffix in (".jsonl", ".ndjson", ".json")
    numbered = [(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]
    return [_non_empty(_prompt_of(line, where) if as_json else line, where) for where, line in numbered]


def _prompt_of(line: str, where: str) -> str:
    try:
        entry = parse_json(line)
    except DocumentError as error:
        raise ConfigError(f"{where}: is not JSON ({error})") from error
    entries = entry if isinstance(entry, dict) else {}
    prompt = entry if isinstance(entry, str) else next((entries[key] for key in _KEYS if key in entries), None)
    if not isinstance(prompt, str):
        raise ConfigError(f'{where}: expected {{"prompt": TEXT}}, got {json.dumps(entry)[:60]}')
    return prompt


def _non_empty(text: str, where: str) -> str:
    text = _decoded(text.rstrip("\r\n"), where)
    if not text.strip():
        raise ConfigError(f"{where}: expected a prompt, got an empty one")
    return text


def _decoded(text: str, where: str) -> str:
    """Decode surrogate escapes, which stand for bytes that the locale's encoding lacks, as UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8") if not text.isascii() else text
    except UnicodeError as error:
        raise ConfigError(f"{where}: expected a text in UTF-8, got {text!a} ({error})") from error


def _typed() -> Iterator[str]:
    """Read prompts from the terminal until Ctrl-D."""
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (it gives input() a history and its keys)
    click.echo("Type a prompt; Ctrl-D ends.", err=True)
    while True:
        try:
            text = input("> ")
        except EOFError:
            click.echo(err=True)
            return
        if text.strip():
            yield text
