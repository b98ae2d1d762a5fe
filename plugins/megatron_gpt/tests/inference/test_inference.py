"""A trained GPT that continues texts and is measured."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recipe_core.checkpoint.inference.decoder import Decoder
from recipe_core.checkpoint.inference.evaluate import summed_loss
from recipe_core.checkpoint.inference.generate import by_columns
from recipe_core.checkpoint.inference.sampling import draw
from recipe_core.cli.main import main
from recipe_core.testing import run_tiny
from recipe_megatron_gpt.model.gpt import GptModel, build
from recipe_megatron_gpt.settings import Gpt

CONFIG = Gpt(layers=2, hidden=32, heads=2, positions=16, vocabulary=300, init_std=0.2)
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def module() -> GptModel:
    torch.manual_seed(4)
    return build(CONFIG)[0].eval()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny variant."""
    out = tmp_path_factory.mktemp("runs") / "run"
    run_tiny("megatron_gpt", out, "train.steps=2", "train.eval_every=0")
    return out


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str]) -> Typed:
    def type_it(*words: object) -> tuple[int, str, str]:
        code = main([*map(str, words)])
        return code, *capfd.readouterr()

    return type_it


def test_the_cache_changes_no_logits(module: GptModel) -> None:
    decoder, ids = Decoder(module, 16), [7, 99, 250]
    fed = [decoder.feed(ids[:2]), decoder.feed(ids[2:])]
    for token in (3, 141, 59, 26, 5):
        ids.append(token)
        fed.append(decoder.feed([token]))
    with torch.no_grad():
        whole = module({"tokens": torch.tensor([ids])})[0, 1:]
    torch.testing.assert_close(torch.stack(fed), whole, atol=1e-5, rtol=0)


def test_a_full_window_slides_by_a_quarter(module: GptModel) -> None:
    decoder, ids = Decoder(module, 8), list(range(10, 32))
    fed = [decoder.feed(ids[:12]), *(decoder.feed([token]) for token in ids[12:])]
    seen = [ids[4:12], *(ids[stop - length : stop] for stop, length in zip(range(13, 23), [6, 7, 8] * 4, strict=False))]
    with torch.no_grad():
        wanted = [module({"tokens": torch.tensor([window])})[0, -1] for window in seen]
    torch.testing.assert_close(torch.stack(fed), torch.stack(wanted), atol=1e-5, rtol=0)


def test_matrices_by_columns_hold_the_same(module: GptModel) -> None:
    turned = build(CONFIG)[0].eval()
    turned.load_state_dict(module.state_dict())
    by_columns(turned)
    assert turned.tokens.weight.stride() == (1, CONFIG.vocabulary)
    assert all(map(torch.equal, turned.state_dict().values(), module.state_dict().values()))
    ids = [7, 99, 250]
    torch.testing.assert_close(Decoder(turned, 16).feed(ids), Decoder(module, 16).feed(ids), atol=1e-5, rtol=0)


def test_generate_starts_without_what_only_training_needs(trained: Path) -> None:
    """They would take a quarter of the time of a short answer."""
    heavy = {"torch.distributed.tensor", "torch.distributed.checkpoint", "torch._dynamo", "sympy"}
    code = (
        "import sys; from recipe_core.cli.main import main; code = main(sys.argv[1:]); "
        f"sys.exit(code or ', '.join({heavy} & sys.modules.keys()) or None)"
    )
    line = [sys.executable, "-c", code, "generate", str(trained), "--prompt", "def", "--tokens", "2"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4000, -1)
    for top_p, kept in ((0.4, 1), (0.5, 1), (0.6, 2), (0.9, 3), (1.0, 4)):
        drawn = draw(logits, 1.0, None, torch.Generator().manual_seed(0), top_p)
        assert drawn.unique().tolist() == list(range(kept))
    assert draw(logits, 1.0, 2, None, 1.0).unique().tolist() == [0, 1]


@pytest.mark.parametrize(("window", "stride", "batch"), [(16, 8, 3), (16, 16, 2), (16, 1, 8), (8, 3, 1), (16, 5, 64)])
def test_every_token_but_the_first_counts_once(module: GptModel, window: int, stride: int, batch: int) -> None:
    ids = torch.randint(300, (45,), generator=torch.Generator().manual_seed(1))
    wanted = 0.0
    for place in range(1, len(ids)):  # the window in which it is among the last ``stride``, or the first one
        start = 0 if place <= window else stride * math.ceil((place - window) / stride)
        with torch.no_grad():
            logits = module({"tokens": ids[None, start:place]})[0, -1]
        wanted -= float(logits.double().log_softmax(-1)[ids[place]])
    total, count = summed_loss(module, ids, window, stride, batch)
    assert count == 44
    assert total == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(("window", "stride"), [(16, 8), (8, 3), (16, 1)])
def test_documents_are_measured_apart(module: GptModel, window: int, stride: int) -> None:
    """Each document as a text of its own, whose windows start with those of the whole stream."""
    ids = torch.randint(300, (60,), generator=torch.Generator().manual_seed(1))
    sizes = [1, 20, 3, 2, 34]
    documents = torch.repeat_interleave(torch.arange(5), torch.tensor(sizes))
    wanted = 0.0
    for place in range(1, len(ids)):
        start = 0 if place <= window else stride * math.ceil((place - window) / stride)
        start = max(start, sum(sizes[: int(documents[place])]))
        if start < place:
            with torch.no_grad():
                logits = module({"tokens": ids[None, start:place]})[0, -1]
            wanted -= float(logits.double().log_softmax(-1)[ids[place]])
    total, count = summed_loss(module, ids, window, stride, 3, documents)
    assert count == 60 - len(sizes)
    assert total == pytest.approx(wanted, abs=1e-3)


def test_eval_of_a_model_that_was_trained_with_a_document_mask(line: Typed, tmp_path: Path) -> None:
    words = ("train.steps=1", "train.eval_every=0", "train.lr=0")
    run_tiny("megatron_gpt", tmp_path / "masked", *words, "data.document_mask=true")
    run_tiny("megatron_gpt", tmp_path / "plain", *words)
    code, _, err = line("eval", tmp_path / "masked", tmp_path / "plain", "--json", tmp_path / "out.json")
    assert code == 0, err
    masked, plain = json.loads((tmp_path / "out.json").read_text())["results"]
    assert masked["data"] == "validation with a document mask"
    assert 0 < plain["tokens"] - masked["tokens"] < plain["tokens"] / 10  # the first of each document
    assert 0 < plain["bytes"] - masked["bytes"] < plain["bytes"] / 10
    assert masked["loss"] != plain["loss"]
    assert masked["loss"] == pytest.approx(plain["loss"], rel=0.01)  # of first weights
    code, out, err = line("generate", tmp_path / "masked", "--prompt", "This", "--tokens", 3)
    assert (code, err) == (0, "")
    assert out.startswith("This")


def test_generation_on_the_command_line(trained: Path, line: Typed, tmp_path: Path) -> None:
    words = ("generate", trained, "--prompt", "This function", "--tokens", 12, "--seed", 3, "--json")
    first, again, other = line(*words), line(*words), line(*words, "--seed", 4)
    assert first[0] == 0
    assert first == again != other
    answer = json.loads(first[1])
    assert (answer["tokens"], answer["ended"]) == (12, "length")
    half = answer["text"][6:8]
    stopped = json.loads(line(*words, "--stop", half)[1])
    assert stopped["ended"] == "stop"
    assert stopped["text"] == answer["text"][: answer["text"].index(half)]
    assert line(*words[:-1])[1] == "This function" + answer["text"] + "\n"


def test_pytorchs_compiler_is_not_imported(trained: Path) -> None:
    """It would take longer than the tokens."""
    lines = (
        "import sys",
        "from recipe_core.cli.main import main",
        f"assert main(['generate', {str(trained)!r}, '--prompt', 'This', '--tokens', '3']) == 0",
        "assert 'torch' in sys.modules and 'torch._dynamo' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=120)


def test_an_export_answers_alike(trained: Path, line: Typed, tmp_path: Path) -> None:
    """It has no job.yaml to speak of its data, and its tokenizer beside it."""
    assert line("convert", trained, tmp_path / "hf", "--to", "hf", "--drop", "optimizer")[0] == 0
    (tmp_path / "hf" / "job.yaml").unlink()
    (tmp_path / "hf" / "checkpoint.json").unlink()
    words = ("--prompt", "This function", "--tokens", 8, "--temperature", 0, "--json")
    code, out, err = line("generate", tmp_path / "hf", *words)
    assert (code, out, "") == line("generate", trained, *words)
    assert err.startswith(
        "recipe: not checked: the values of model.safetensors: neither the file nor a manifest has check"
    )


def test_eval_on_text_and_token_files(trained: Path, line: Typed, tmp_path: Path) -> None:
    """A text, and the same prepared with the tokenizer of the run, agree but for the end of the document."""
    text = "The first line, and what follows it.\n" * 20
    (tmp_path / "my.txt").write_text(text)
    assert line("convert", trained, tmp_path / "hf", "--to", "hf", "--drop", "optimizer")[0] == 0
    tokenizer = tmp_path / "hf" / "tokenizer.json"
    made = line(
        "prepare", "gpt_indexed", f"inputs={tmp_path / 'my.txt'}", f"output={tmp_path / 'my'}",
        f"tokenizer={tokenizer}", "append_eod=false",
    )  # fmt: skip
    assert made[0] == 0, made[2]
    data = ("--data", tmp_path / "my.txt", "--data", tmp_path / "my")
    code, out, err = line("eval", trained, *data, "--json", tmp_path / "out.json")
    assert code == 0, err
    plain, prepared = json.loads((tmp_path / "out.json").read_text())["results"]
    assert plain["perplexity"] == pytest.approx(math.exp(plain["loss"]))
    bits = plain["loss"] * plain["tokens"] / math.log(2)
    assert plain["bits_per_byte"] == pytest.approx(bits / plain["bytes"])
    assert 0 < len(text.encode()) - plain["bytes"] < 20  # the first token, which nothing predicts
    assert plain["bits_per_byte"] == pytest.approx(bits / len(text.encode()), rel=0.02)  # its first token is given
    assert prepared["loss"] == pytest.approx(plain["loss"], rel=0.02)
    assert len(out.splitlines()) == 3


def test_eval_names_the_wrappers_that_it_leaves_out(line: Typed, tmp_path: Path) -> None:
    """They select samples, and eval reads whole documents: its number is that of a run without them."""
    words = ("train.steps=1", "train.eval_every=0", "train.lr=0")
    run_tiny("megatron_gpt", tmp_path / "filtered", *words, "wrappers=filtered", "wrapper.filtered.least=60")
    run_tiny("megatron_gpt", tmp_path / "plain", *words)
    both = (tmp_path / "filtered", tmp_path / "plain")
    code, out, err = line("eval", *both, "--limit", "200", "--json", tmp_path / "out.json")
    assert code == 0, err
    filtered, plain = json.loads((tmp_path / "out.json").read_text())["results"]
    assert (filtered.pop("data"), plain.pop("data")) == ("validation without filtered", "validation")
    assert "  validation without filtered  " in out
    assert filtered["loss"] == plain["loss"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "--window", "65", "--prompt", "x"], "--window: expected at most 64, the positions of the model"),
        (["generate", "--tokenizer", "gone.json", "--prompt", "x"], "gone.json: not found"),
        (["eval", "--stride", "65"], "--stride: expected at most 64, the window, got 65"),
        (["eval", "--data", "gone"], "--data: gone: neither token files (.bin and .idx) nor a text"),
    ],
)
def test_mistakes(trained: Path, line: Typed, words: list[str], message: str) -> None:
    code, out, err = line(words[0], trained, *words[1:])
    assert (code, out) == (2, "")
    assert message in err


def test_data_that_is_gone_leaves_no_tokenizer(line: Typed, tmp_path: Path, trained: Path) -> None:
    import shutil

    shutil.copytree(trained / "checkpoints" / "step-2", tmp_path / "step")
    (tmp_path / "step" / "checkpoint.json").unlink()
    job = tmp_path / "step" / "job.yaml"
    job.write_text(job.read_text().replace("files: []", "files: [gone/my]"))
    code, _, err = line("generate", tmp_path / "step", "--prompt", "x")
    assert code == 2
    assert "holds no copy of it, and none is there; give it: --tokenizer PATH" in err
    job.write_text(job.read_text().partition("identity:")[0])  # as releases before identities wrote it
    code, _, err = line("generate", tmp_path / "step", "--prompt", "x")
    assert code == 2
    assert "no tokenizer is known" in err
    assert "gone/my" in err
    assert "--tokenizer PATH" in err
