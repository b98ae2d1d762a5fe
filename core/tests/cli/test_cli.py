"""The command, as a user types it: in this process where that is enough, as real processes where several are needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe_core.cli.main import main
from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve
from recipe_core.testing.packages import install_plugin

PLUGIN = (Path(__file__).parents[1] / "fake_plugin.py").read_text(encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installed plugin, first on the path of this process and of those it starts."""
    folder = tmp_path / "site"
    install(folder, "fake_plugin", PLUGIN)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("RECIPE_PLUGINS", "fake_plugin")
    monkeypatch.delitem(sys.modules, "fake_plugin", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def install(folder: Path, name: str, code: str) -> None:
    """Install a module as a plugin, with an entry point."""
    install_plugin(folder, name, name, version="1.2")
    (folder / f"{name}.py").write_text(code)


Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(site: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run a command line; return exit code, stdout and stderr."""

    def type_it(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return type_it


def spawn(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recipe_core.cli", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def calls(folder: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("called-*.json"))]


def test_ls_shows_recipes_first_with_owners_and_variants(typed: Typed) -> None:
    code, out, err = typed("ls")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["Recipes"],
        ["fake", "fake_plugin", "writes", "down", "its", "call"],
        ["variants:", "tiny"],
    ]
    columns = {(line.index("fake_plugin"), line.index("writes")) for line in lines[1:2]}
    columns |= {(line.index("core"), line.index("data parallel")) for line in lines if line.startswith("  ddp ")}
    assert len(columns) == 1
    assert [line for line in lines if line.endswith("s") and not line.startswith(" ")] == [
        "Recipes",
        "Models",
        "Datasets",
        "Layouts",
        "Checkpoint formats",
        "Engines",
        "Launchers",
        "Executors",
        "Losses",
        "Optimizers",
        "Schedules",
        "Trackers",
        "Callbacks",
        "Data wrappers",
        "Transforms",
        "Evaluations",
    ]
    assert re.search(r"^Plugins: core \(recipe-core .*\), fake_plugin \(fake_plugin 1\.2\)$", out, re.MULTILINE)


def test_a_broken_plugin_is_reported_and_the_rest_works(
    typed: Typed, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "broken_plugin", "raise ImportError('no driver')")
    monkeypatch.setenv("RECIPE_PLUGINS", "fake_plugin,broken_plugin")
    complaint = "plugin 'broken_plugin' did not load and is left out: ImportError: no driver (broken_plugin.py, line 1)"
    code, out, err = typed("ls")
    assert (code, err) == (1, f"recipe: {complaint}\n")
    assert "fake" in out
    assert typed("show", "fake")[0] == 0
    code, _, err = typed("show", "broken")
    assert code == 2
    assert err.splitlines()[-1] == f"recipe show: no recipe named 'broken' (there are: fake); {complaint}"


def test_two_plugins_with_one_recipe_are_both_named(typed: Typed, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "rival_plugin", PLUGIN.replace('"gpt"', '"t5"').replace('"tokens"', '"text"'))
    monkeypatch.setenv("RECIPE_PLUGINS", "fake_plugin,rival_plugin")
    message = "recipe 'fake' is provided by plugin 'fake_plugin' and by plugin 'rival_plugin'; "
    code, out, err = typed("ls")
    assert code == 1
    assert f"recipe: {message}" in err
    assert re.search(r"^  fake_plugin/fake +fake_plugin +writes down its call$", out, re.MULTILINE)
    assert re.search(r"^  rival_plugin/fake +rival_plugin +writes down its call$", out, re.MULTILINE)
    code, _, err = typed("run", "fake")
    assert code == 2
    assert err == f"recipe run: {message}say which one: fake_plugin/fake or rival_plugin/fake\n"
    code, out, err = typed("show", "rival_plugin/fake:tiny")
    assert (code, err) == (0, "")
    assert yaml.safe_load(out)["recipe"] == "rival_plugin/fake"
    assert typed("run", "rival_plugin/fake", "--out", "here")[0] == 0
    assert calls(Path("here"))[0]["name"] == "rival_plugin/fake"
    assert typed("show", "rival_plugin/fakes")[2].startswith(
        "recipe show: no recipe named 'rival_plugin/fakes'; did you"
    )


def test_show_prints_what_a_run_takes_back(typed: Typed) -> None:
    code, out, err = typed("show", "train.lr=1e-4", "fake:tiny", "--debug", "layout=single")
    assert (code, err) == (0, "")
    registry = load()
    assert resolve(registry, yaml.safe_load(out)) == resolve(registry, "fake:tiny", ["layout=single", "train.lr=1e-4"])
    Path("mine.yaml").write_text(out)
    assert typed("show", "mine.yaml") == (0, out, "")
    assert typed("run", "mine.yaml", "--out", "here", "train.steps=3")[0] == 0
    (call,) = calls(Path("here"))
    assert (call["name"], call["steps"]) == ("fake:tiny", 3)


def test_check_reports_every_problem_at_once(typed: Typed) -> None:
    code, out, err = typed("check", "fake", "--processes", "3", "train.lr=fast", "data.missing=a,b", "data.sequence=65")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "recipe check: 4 problems:",
        "  - train.lr: expected a number, got 'fast'",
        "  - a: not found",
        "  - b: not found",
        "  - data: a sample has 65 tokens and the model takes at most 64; shorten the samples (data.sequence) or give "
        "the model more positions",
    ]
    code, _, err = typed("check", "fake", "--processes", "3")
    assert (code, err) == (
        2,
        "recipe check: train.global_batch: 8 does not divide by 6 (train.micro_batch 2 x 3 data-parallel ranks); "
        "take 6 or 12\n",
    )


def test_check_estimates_what_the_run_needs(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    from recipe_core.train.start.check.machine import Memory

    monkeypatch.setattr("recipe_core.cli.show.memory", lambda device: Memory(40_000_000, "this machine", shared=True))
    monkeypatch.setattr("recipe_core.cli.show.free_space", lambda folder: 5_000_000_000)
    code, out, err = typed("check", "fake", "--processes", "2", "--out", "there")
    assert (code, err) == (0, "")
    assert out.partition("\n  environment ")[0] == textwrap.dedent(
        """\
        fake on 2 processes: this machine cannot hold it; the settings are right

          parameters          2.00 M
          engine              native (engine=auto)

          memory              of one process (fp32, micro batch 2)
            weights                 8 MB
            gradients               8 MB
            optimizer states       16 MB
            activations            80 kB
            logits                  4 kB
            total                32.1 MB
            this machine has       40 MB, and 2 processes here need 64.2 MB  it will not fit

          one step            256 tokens (8 samples of 32)
                              24 GFLOP over all processes
          whole run           10 steps, 80 samples, 2.00 times each of 40

          one checkpoint      24 MB; 2 at once need 48 MB; 5 GB are free for there/
        """
    )
    assert not Path("there").exists()


def test_check_says_what_it_does_not_know(typed: Typed) -> None:
    code, out, _ = typed("check", "fake", "data=silent")
    assert code == 0
    assert "  What it needs is not known: dataset 'silent' says nothing of itself (facts)." in out.splitlines()


def test_run_makes_a_folder_of_its_own(typed: Typed) -> None:
    assert typed("run", "fake:tiny", "train.steps=7") == (0, "", "")
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"fake-tiny-\d{8}-\d{6}", folder.name)
    (call,) = calls(folder)
    assert (call["name"], call["steps"], call["rank"]) == ("fake:tiny", 7, None)


def test_a_run_that_fails_before_it_writes_leaves_no_folder(typed: Typed) -> None:
    assert typed("run", "fake", "model.fail=user") == (2, "", "recipe run: tokens.bin: truncated, says rank None\n")
    assert list(Path("runs").iterdir()) == []
    Path("mine").mkdir()
    assert typed("run", "fake", "model.fail=user", "--out", "mine")[0] == 2
    assert Path("mine").is_dir()


def test_nothing_is_written_where_a_setting_is_wrong(typed: Typed) -> None:
    code, _, err = typed("run", "fake", "model.layres=1", "train.steps=0")
    assert code == 2
    assert err.splitlines() == [
        "recipe run: 2 problems:",
        "  - model.layres: no such setting; did you mean 'layers'? (settings: layers, fail)",
        "  - train.steps: expected at least 1, got 0",
    ]
    assert list(Path.cwd().iterdir()) == []


def test_ctrl_c_ends_with_130(typed: Typed) -> None:
    code, _, err = typed("run", "fake", "model.fail=interrupt")
    assert (code, err.strip()) == (130, "recipe run: interrupted")


def test_a_bug_in_the_loop_of_a_recipe_names_it(typed: Typed) -> None:
    code, _, err = typed("run", "fake", "model.fail=bug")
    said = r"recipe 'fake': 'fake_plugin:run' raised RuntimeError: broken code \(fake_plugin.py, line \d+\); .*"
    assert code == 2
    assert re.fullmatch(f"recipe run: {said}\n", err), err
    assert typed("run", "fake", "model.fail=bug", "--debug")[2].startswith("Traceback (most recent call last):")


def test_a_bug_of_the_core_keeps_its_traceback(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipe_core.cli.show.listing", lambda *arguments: 1 // 0)
    code, _, err = typed("ls")
    assert code == 70
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1].startswith("ZeroDivisionError")


@pytest.mark.parametrize("line", ["run {}", "run fake --out {}", "inspect {}", "verify {}", "status {}", "generate {}"])
def test_a_name_that_no_disk_takes_is_a_message(line: str, typed: Typed) -> None:
    code, _, err = typed(*line.format("x" * 300).split())
    assert code == 2
    assert re.fullmatch(r"recipe \w+: x{300}\S*: cannot be used \(File name too long\); choose a shorter name\n", err)


@pytest.mark.parametrize("line", ["--debug run fake model.fail=user", "run fake model.fail=user --debug"])
def test_debug_shows_the_traceback_of_a_users_mistake(line: str, typed: Typed) -> None:
    code, _, err = typed(*line.split())
    assert code == 2
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1] == "recipe run: tokens.bin: truncated, says rank None"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "shwo fake",
            "no command 'shwo'; did you mean 'show'? "
            "(commands: ls, show, check, run, precompile, submit, status, logs, stop, compare, report, prepare, "
            "inspect, verify, generate, eval, convert, merge, doctor, plugin, completion)",
        ),
        ("show", "name a recipe (`recipe ls` lists them), or a file that `recipe show` wrote"),
        ("run fake other", "expected one recipe, got 'fake' and 'other'; a setting is written section.setting=value"),
        ("run fake steps", "run: steps: a setting is written section.setting=value; write `train.steps=N`\n"),
        ("run fake train.lr 1", "run: train.lr: a setting is written section.setting=value; write `train.lr=1`\n"),
        ("run fake --train.lr=1", "run: --train.lr: no such option; write `train.lr=1`, without dashes\n"),
        ("check fake --gpus 2", "check: --gpus: no such option; write `--processes 2`\n"),
        ("run fake --processes 0", "Invalid value for '--processes': 0 is not in the range x>=1."),
        ("check fake --ot x", "--ot"),
        ("completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'."),
    ],
)
def test_a_line_that_cannot_be_understood(line: str, message: str, typed: Typed) -> None:
    code, out, err = typed(*line.split())
    assert (code, out) == (2, "")
    assert message in err


def test_a_word_that_is_no_setting_is_told_the_form(typed: Typed) -> None:
    code, _, err = typed("show", "fake", "=5")
    assert (code, err) == (
        2,
        "recipe show: '=5': expected section.setting=value, as in train.steps=100 or layout=ddp\n",
    )


def test_help_and_version(typed: Typed) -> None:
    code, out, _ = typed("--help")
    assert code == 0
    commands = "ls show check run precompile submit status logs stop compare report prepare inspect verify"
    commands += " generate eval convert merge doctor plugin completion"
    assert re.findall(r"^  (\w+)  +[A-Z]", out, re.MULTILINE) == commands.split()
    assert "..." not in out.partition("Commands:")[2]
    code, out, _ = typed("--version")
    assert code == 0
    assert re.fullmatch(r"recipe, version \d+\.\d+\.\d+\n", out)


@pytest.mark.parametrize(("encoding", "printed"), [("ascii", rb"\xe9 \ufffd"), ("utf-8", "é \ufffd".encode())])
def test_what_the_terminal_cannot_show_is_printed_as_an_escape(encoding: str, printed: bytes) -> None:
    """A file name that is not text keeps its bytes."""
    program = r"from recipe_core.cli.main import main; main(['--version']); print('\xe9 \ufffd \udcff')"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == printed + b" \xff"


@pytest.mark.usefixtures("site")
def test_several_processes_get_the_same_line_and_one_folder() -> None:
    done = spawn("--debug", "run", "fake:tiny", "--processes", "2", "train.steps=3", "layout=ddp")
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = Path("runs").iterdir()
    arguments = ["--debug", "run", "fake:tiny", "train.steps=3", "layout=ddp", "--out", str(folder)]
    assert [(c["rank"], c["steps"], c["words"]) for c in calls(folder)] == [(0, 3, arguments), (1, 3, arguments)]
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]


@pytest.mark.usefixtures("site")
def test_the_mistake_of_several_processes_is_told_once() -> None:
    done = spawn("run", "fake", "--processes", "2", "model.fail=user", "--out", "here")
    assert done.returncode == 2
    assert len(re.findall("truncated, says rank", done.stdout + done.stderr)) == 1
    assert "Traceback" not in done.stderr
    done = spawn("run", "fake", "--processes", "3", "--out", "never")
    assert done.returncode == 2
    assert done.stderr.startswith("recipe run: train.global_batch: 8 does not divide by 6")
    assert not Path("never").exists()


def as_rank(rank: int, world_size: int = 2, **environment: str) -> dict[str, str]:
    """The environment of a rank that torchrun started."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        **environment,
    }


@pytest.mark.usefixtures("site")
def test_a_rank_of_torchrun_trains_and_starts_no_others() -> None:
    for rank in range(2):
        done = spawn("run", "fake", **as_rank(rank, TORCHELASTIC_RUN_ID="mine"))
        assert (done.returncode, done.stderr) == (0, "")
    assert [call["rank"] for call in calls(Path("runs/fake-mine"))] == [0, 1]
    assert sorted(path.name for path in Path("runs/fake-mine/logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    done = spawn("run", "fake", "--processes", "2", **as_rank(0, TORCHELASTIC_RUN_ID="mine"))
    assert (done.returncode, "--processes: torchrun started this process already" in done.stderr) == (2, True)


@pytest.mark.usefixtures("site")
def test_one_rank_of_a_machine_tells_a_mistake_that_all_see() -> None:
    runs = [spawn("run", "fake", "train.micro_batch=3", "--out", "x", **as_rank(rank)) for rank in range(2)]
    assert [done.returncode for done in runs] == [2, 2]
    assert runs[0].stderr.startswith("recipe run: train.global_batch: 8 does not divide by 6")
    assert runs[1].stderr == ""


@pytest.mark.usefixtures("site")
def test_a_rank_that_fails_later_says_which_it_is() -> None:
    done = spawn("run", "fake", "model.fail=user", "--out", "x", **as_rank(1))
    assert (done.returncode, done.stderr) == (2, "recipe run (rank 1): tokens.bin: truncated, says rank 1\n")


@pytest.mark.parametrize(
    ("line", "banned"),
    [
        ("ls", {"torch", "numpy", "transformers", "pydantic", "yaml", "rich"}),
        ("show fake:tiny train.lr=1", {"torch", "numpy", "transformers", "pydantic", "rich"}),
        ("check fake", {"torch", "numpy", "transformers", "pydantic", "rich"}),
        ("completion bash", {"torch", "numpy", "transformers", "pydantic", "yaml", "rich"}),
        ("--help", {"torch", "numpy", "transformers", "pydantic", "yaml", "rich"}),
    ],
)
@pytest.mark.usefixtures("site")
def test_light_commands_import_nothing_heavy(line: str, banned: set[str]) -> None:
    code = (
        "import sys; from recipe_core.cli.main import main; code = main(sys.argv[1:]); "
        "print('modules', *sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert modules[0] == "modules"
    assert banned & set(modules) == set()
