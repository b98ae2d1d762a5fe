"""Paths on the command line and in settings: remote ones are refused, and folders of other things stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args, get_origin

import pytest

from recipe_core.cli.main import main
from recipe_core.hooks.kinds import PARTS
from recipe_core.hooks.registry import load
from recipe_core.hooks.train import Train
from recipe_core.settings.fill import fill
from recipe_core.settings.values import kinds

LINES = [
    ("--out", "run megatron_gpt:tiny --out {}"),
    ("--out", "check megatron_gpt:tiny --out {}"),
    ("--out", "precompile megatron_gpt:tiny --out {}"),
    ("FILE", "run {}/job.yaml"),
    ("FILE", "show {}/job.yaml"),
    ("train.resume", "check megatron_gpt:tiny train.resume={}"),
    ("train.init_from", "check megatron_gpt:tiny train.init_from={}"),
    ("train.golden", "check megatron_gpt:tiny train.golden={}"),
    ("data.files", "check megatron_gpt:tiny data.files=0.5:{},0.5:/here"),
    ("data.files", "check bert_dp:tiny data.files=/here,{}"),
    ("data.tokenizer", "check megatron_gpt:tiny data.tokenizer={}"),
    ("data.folder", "check hf_finetune:mrpc data.folder={}"),
    ("model.source", "check hf_finetune:mrpc model.source={}"),
    ("SRC", "convert {} target --to hf"),
    ("DST", "convert source {} --to hf"),
    ("SRC", "merge {} target"),
    ("PATH", "inspect {}"),
    ("--tokenizer", "inspect . --tokenizer {}"),
    ("PATH", "verify {}"),
    ("RUN...", "compare . {}"),
    ("--png", "compare . --png {}/a.png"),
    ("--write-golden", "compare . --write-golden {}"),
    ("output", "prepare gpt_indexed inputs=a.txt tokenizer=train vocab_size=300 output={}"),
    ("inputs", "prepare gpt_indexed inputs=a.txt,{}/*.txt tokenizer=train vocab_size=300 output=o"),
    ("tokenizer", "prepare gpt_indexed inputs=a.txt tokenizer={} output=o"),
    ("output", "prepare bert_hdf5 inputs=a.txt vocabulary=v output={}"),
    ("vocabulary", "prepare bert_hdf5 inputs=a.txt vocabulary={} output=o"),
    ("inputs", "prepare bert_packed inputs={} output=o"),
    ("output", "prepare bert_packed inputs=a output={}"),
]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_a_remote_path_on_the_command_line(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.format("hf://bucket/x").split()) == 2
    said = capsys.readouterr().err
    assert f"{name}: expected a path on this machine, got '" in said
    assert "hf://bucket/x" in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def takes_text(kind: object) -> bool:
    if get_origin(kind) is Mapping:
        return False  # a text in place of a mapping is refused, whatever it says
    return kind is str or str in get_args(kind)  # str, str | None, tuple[str, ...]


def test_which_settings_take_an_address() -> None:
    """This covers settings of parts that are added later, too."""
    registry = load()
    specs = [registry.get(part, name) for part in PARTS for name in registry.names(part)]
    classes = {kind for spec in specs for kind in (spec.config, getattr(spec, "prepare_config", None)) if kind}
    accepted: dict[str, set[str]] = {"hf": set(), "s3": set()}
    seen = set()
    for settings in (Train, *classes):
        for name, kind in kinds(settings).items():
            if not takes_text(kind):
                continue
            seen.add(name)
            for scheme, names in accepted.items():
                problems: list[str] = []
                fill(settings, {name: f"{scheme}://b/x"}, "here", problems)
                if not any(f"here.{name}: expected a path on this machine" in problem for problem in problems):
                    names.add(name)
    assert {"resume", "init_from", "golden", "files", "tokenizer", "source", "folder", "inputs", "output"} <= seen
    assert accepted == {"hf": set(), "s3": {"files", "inputs"}}


def test_nothing_is_written_into_a_folder_of_other_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, file, text in (("other", "thesis.tex", "mine"), ("cluster", "job.yaml", "kind: Job\n")):
        Path(folder).mkdir()
        Path(folder, file).write_text(text)
        for processes in ("1", "2"):  # with several, the logs come first
            assert main(["run", "megatron_gpt:tiny", "--out", folder, "--processes", processes]) == 2
            assert f"{folder} exists and is not a run folder" in capsys.readouterr().err
        assert [path.name for path in Path(folder).iterdir()] == [file]
        assert Path(folder, file).read_text() == text
