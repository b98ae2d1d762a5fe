"""The model as Megatron's folders: divided and joined bit by bit, other versions read, damage refused."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.checkpoint.locate import find
from recipe_core.cli.main import main
from recipe_core.hooks.registry import load
from recipe_core.settings.job import resolve
from recipe_core.testing import run_tiny
from recipe_core.testing.checkpoints import convert, equal, tensors
from recipe_core.train.start.resume import start_problems
from recipe_megatron_gpt.model.gpt import GptModel, build
from recipe_megatron_gpt.settings import Gpt

SMALL = Gpt(layers=4, hidden=32, heads=4, positions=16, vocabulary=101, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def module() -> GptModel:
    """All its tensors differ, those that begin as zeros and ones too."""
    torch.manual_seed(4)
    found = build(SMALL)[0]
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.normal_(0, 0.1)
    return found.eval()


def file(folder: Path, rank: str) -> Path:
    return folder / "iter_0000002" / f"mp_rank_{rank}" / "model_optim_rng.pt"


def tree_of(path: Path) -> dict[str, Any]:
    with torch.serialization.safe_globals([argparse.Namespace]):
        found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


@pytest.mark.parametrize(
    "words", [("tp=2", "pp=2"), ("tp=4",), ("pp=4", "names=legacy"), ("tp=2", "pp=2", "names=legacy")]
)
def test_there_and_back_is_bit_equal(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Weights and optimizer; the vocabulary, which no degree divides, is padded between."""
    first = write_checkpoint(module, optimizer=True)
    assert convert(first, tmp_path / "m", "--to", "megatron", *words) == 0
    assert (tmp_path / "m" / "latest_checkpointed_iteration.txt").read_text() == "2"
    for name in ("job.yaml", "checkpoint.json"):  # as anybody's: its args say what it is
        (tmp_path / "m" / name).unlink()
    assert convert(tmp_path / "m", tmp_path / "back", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "back"))
    assert find(load(), tmp_path / "back").open()["progress"] == {"step": 2, "consumed_samples": 16}


def test_what_each_rank_holds(module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Whole heads, half of the width and of the padded vocabulary; layers numbered anew; the embedding at both ends."""
    first = write_checkpoint(module)
    assert convert(first, tmp_path / "m", "--to", "megatron", "tp=2", "pp=2", "vocabulary_multiple=8") == 0
    begin, end = (tree_of(file(tmp_path / "m", rank)) for rank in ("01_000", "01_001"))
    words = begin["model"]["embedding.word_embeddings.weight"]
    assert begin["checkpoint_version"] == 3.0
    assert begin["args"].padded_vocab_size == 112
    assert torch.equal(words[: 101 - 56], module.tokens.weight[56:])
    assert not words[101 - 56 :].any()
    assert torch.equal(end["model"]["output_layer.weight"], words)
    layer = module.blocks[3]
    found = {name: t for name, t in end["model"].items() if name.startswith("decoder.layers.1.")}
    assert len(found) == 12
    assert torch.equal(found["decoder.layers.1.self_attention.linear_qkv.weight"], layer.attention.qkv.weight[48:])
    assert torch.equal(
        found["decoder.layers.1.self_attention.linear_proj.weight"], layer.attention.output.weight[:, 16:]
    )
    assert torch.equal(found["decoder.layers.1.mlp.linear_fc2.bias"], layer.mlp.down.bias)
    assert "embedding.position_embeddings.weight" in begin["model"]
    assert "decoder.final_layernorm.weight" in end["model"]


@pytest.mark.parametrize("version", [0, 1.0])
def test_older_orders_of_queries_keys_and_values(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, version: float
) -> None:
    first = write_checkpoint(module)
    assert convert(first, tmp_path / "m", "--to", "megatron", "tp=2", "names=legacy") == 0
    for rank in ("00", "01"):
        path = file(tmp_path / "m", rank)
        tree = tree_of(path)
        encoder = tree["model"]["language_model"]["encoder"]
        for name in [n for n in encoder if "query_key_value" in n]:
            rows = encoder[name].unflatten(0, (2, 3, 8))  # heads of this rank, kinds, width
            encoder[name] = (rows.transpose(0, 1) if version == 0 else rows.transpose(1, 2)).flatten(0, 2)
        tree["checkpoint_version"] = version
        tree["model"]["language_model"]["transformer"] = tree["model"]["language_model"].pop("encoder")
        torch.save(tree, path)
    (tmp_path / "m" / "checkpoint.json").unlink()
    assert convert(tmp_path / "m", tmp_path / "back", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "back"))


def test_weights_that_an_optimizer_keeps_in_fp32_count(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """As Megatron writes under mixed precision: 16-bit weights, and fp32 ones in the optimizer's groups."""
    first = write_checkpoint(module, optimizer=True)
    assert convert(first, tmp_path / "m", "--to", "megatron") == 0
    path = file(tmp_path / "m", "00")
    tree = tree_of(path)
    model = tree["model"]
    decaying, plain = ([t for t in model.values() if (t.ndim > 1) == wanted] for wanted in (True, False))
    tree["optimizer"] = {"optimizer": tree["optimizer"], "fp32_from_fp16_params": [decaying, plain]}
    tree["model"] = {name: tensor.bfloat16() for name, tensor in model.items()}
    torch.save(tree, path)
    (tmp_path / "m" / "checkpoint.json").unlink()
    assert convert(tmp_path / "m", tmp_path / "back", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "back"))


def test_a_run_goes_on_from_a_folder(tmp_path: Path) -> None:
    """The same losses as from the checkpoint that the folder was made of."""
    words = ("train.steps=4", "train.save_every=2", "train.eval_every=0")
    first = run_tiny("megatron_gpt", tmp_path / "run", *words)
    made = tmp_path / "m"
    assert convert(tmp_path / "run" / "checkpoints" / "step-2", made, "--to", "megatron", "tp=2") == 0
    again = run_tiny("megatron_gpt", tmp_path / "again", *words, f"train.resume={made / 'iter_0000002'}")
    assert again.column("loss") == {step: first.column("loss")[step] for step in (3, 4)}


class Setting:
    """As classes of Megatron's own stand in its args."""


def test_settings_of_classes_that_are_not_installed(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    from types import ModuleType

    assert convert(write_checkpoint(module), tmp_path / "m", "--to", "megatron") == 0
    path, name = file(tmp_path / "m", "00"), "megatron.core.made_up"
    tree = tree_of(path)
    made_up = ModuleType(name)
    made_up.Setting = Setting  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        for part in ("megatron", "megatron.core"):
            patch.setitem(sys.modules, part, ModuleType(part))
        patch.setitem(sys.modules, name, made_up)
        patch.setattr(Setting, "__module__", name)
        tree["args"].attention_backend = Setting()
        tree["rng_state"] = [torch.get_rng_state(), Setting()]
        torch.save(tree, path)
    (tmp_path / "m" / "checkpoint.json").unlink()
    assert convert(tmp_path / "m", tmp_path / "back", "--to", "dcp") == 0


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/should-not-exist",)


def spoil(folder: Path, how: str) -> None:
    """Damage such a folder."""
    first, last = file(folder, "00_000"), file(folder, "01_001")
    tree = tree_of(last)
    if how == "missing":
        shutil.rmtree(last.parent)
    elif how == "degree":
        for path in folder.glob("iter_*/mp_rank_01_*"):
            shutil.rmtree(path)
    elif how == "step":
        torch.save({**tree, "iteration": 3}, last)
    elif how == "mixed":
        tree["model"]["decoder.final_layernorm.weight"] += 1
        torch.save(tree, last)
    elif how == "state":
        state = tree["optimizer"]["state"][tree["optimizer"]["param_groups"][1]["params"][-1]]
        state["exp_avg"] += 1
        torch.save(tree, last)
    elif how == "tied":
        for path in (file(folder, "00_001"), last):
            tree = tree_of(path)
            tree["optimizer"]["state"][tree["optimizer"]["param_groups"][0]["params"][-1]]["exp_avg"] += 1
            torch.save(tree, path)
    elif how == "names":
        tree["model"]["decoder.final_layernorm.wieght"] = tree["model"].pop("decoder.final_layernorm.weight")
        torch.save(tree, last)
    elif how == "evil":
        torch.save({**tree_of(first), "x": Evil()}, first)
    elif how == "tracker":
        (folder / "latest_checkpointed_iteration.txt").write_text("7")
    elif how == "experts":
        shutil.copytree(last.parent, last.parent.with_name("mp_rank_01_001_003"))
    elif how == "other":
        for path in folder.glob("iter_*/*/*.pt"):
            tree = tree_of(path)
            tree["args"].add_bias_linear, tree["args"].swiglu = False, True
            torch.save(tree, path)
    elif how == "distributed":
        (last.parent / "distrib_optim.pt").write_bytes(b"")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "missing",
            "3 of 4 files are there (tensor parallel 2, pipeline 2, by their names). Missing: tensor rank 1 of pip",
        ),
        ("degree", "written with tensor_model_parallel_size 2, not 1 as the names of the folders say"),
        ("step", "is of step 3, and "),
        (
            "mixed",
            "norm.weight is the same on all tensor-parallel ranks, and the files of ranks 0 and 1 have other values",
        ),
        ("tied", "the optimizer's exp_avg of tokens.weight has other values in the files of two pipeline stages"),
        ("state", "the optimizer's exp_avg of norm.bias is the same on all tensor-parallel ranks, and the files of"),
        (
            "names",
            "that of tensor rank 1 (pipeline rank 1) differs from that of rank 0: norm.weight, decoder.final_layerno",
        ),
        ("other", "it is a model that gpt cannot be: swiglu is True; add_bias_linear is False"),
        ("evil", "refused, since it names posix.system"),
        ("tracker", "names iter_0000007, which is not there (there are: iter_0000002)"),
        ("experts", "mp_rank_01_001_003: experts or virtual stages, which are not read here"),
        (
            "distributed",
            "Megatron's distributed optimizer are not read here; to convert the weights alone, add --drop optim",
        ),
    ],
)
def test_what_is_refused(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, how: str, message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    first = write_checkpoint(module, optimizer=how in ("distributed", "state", "tied"))
    assert convert(first, tmp_path / "m", "--to", "megatron", "tp=2", "pp=2") == 0
    for name in ("checkpoint.json", "job.yaml") if how == "other" else ("checkpoint.json",):
        (tmp_path / "m" / name).unlink()
    spoil(tmp_path / "m", how)
    assert convert(tmp_path / "m", tmp_path / "x", "--to", "dcp") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tp=8",), "tp=8 does not divide model.heads, which is 4"),
        (("pp=3",), "pp=3 does not divide the model's 4 blocks"),
        (("tp=2", "vocabulary_multiple=1"), "tp=2 does not divide dimension 0 of tokens.weight, which is 101"),
        (("tp=0",), "tp: expected at least 1, got 0"),
    ],
)
def test_degrees_that_do_not_fit(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, words: tuple[str, ...], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert convert(write_checkpoint(module), tmp_path / "m", "--to", "megatron", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({}, ("model.heads=2",), "model.heads: 4 in its args, 2 in this run"),
        ({}, ("model.vocabulary=99",), "model.vocabulary: 101 in its args, 99 in this run"),
        ({"orig_vocab_size": None}, ("model.vocabulary=99",), ""),  # the rows may be 99 with padding
        ({"orig_vocab_size": None}, ("model.vocabulary=80",), "model.vocabulary: 104 in its args, 80 in this run"),
        ({}, (), ""),
        ({"hidden_dropout": 0.3, "seq_length": 8, "bf16": True}, (), ""),
        ({"norm_epsilon": 1e-6}, (), "norm_epsilon is 1e-06"),
        ({"layernorm_epsilon": 1e-6}, (), "layernorm_epsilon is 1e-06"),
        ({"kv_channels": 16}, (), "hidden_size is 32 and not 16 x 4"),
        ({"bias_gelu_fusion": False}, (), "bias_gelu_fusion is False, which computes GELU by erf"),
        ({"bias_gelu_fusion": False, "openai_gelu": True}, (), ""),
        ({"window_size": (128, 0)}, (), "window_size is [128, 0]"),
        ({"use_rotary_position_embeddings": True}, (), "use_rotary_position_embeddings is True"),
    ],
)
def test_a_start_of_another_model_is_refused(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any], words: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    """By what ``args`` say; what decides nothing may differ, and so may padding of the vocabulary."""
    assert convert(write_checkpoint(module), tmp_path / "m", "--to", "megatron", "vocabulary_multiple=8") == 0
    for name in ("job.yaml", "checkpoint.json"):
        (tmp_path / "m" / name).unlink()
    path = file(tmp_path / "m", "00")
    tree = tree_of(path)
    vars(tree["args"]).update(changes)
    torch.save(tree, path)
    sizes = ("layers=4", "hidden=32", "heads=4", "positions=16", "vocabulary=101", "dropout=0")
    same = [f"model.{size}" for size in sizes]
    start = ["megatron_gpt", *same, *words, f"train.init_from={tmp_path / 'm'}"]
    problems = start_problems(resolve(load(), start[0], start[1:]))
    assert (not problems) if not message else (len(problems) == 1 and message in problems[0])


def test_files_of_two_ranks_that_megatron_wrote_are_not_exchanged(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process writes its number into ``args``; torch.save has the same name for the files of all ranks."""
    assert convert(write_checkpoint(module), tmp_path / "m", "--to", "megatron", "tp=2") == 0
    paths = sorted((tmp_path / "m").rglob("model_optim_rng.pt"))
    trees = [torch.load(path, weights_only=False) for path in paths]
    for numbers, code in (((0, 1), 0), ((0, 0), 0), ((4, 6), 0), ((1, 0), 2)):
        for path, tree, number in zip(paths, trees, numbers, strict=True):
            tree["args"].rank = number
            torch.save(tree, path)
        (tmp_path / "m" / "checkpoint.json").unlink(missing_ok=True)
        assert convert(tmp_path / "m", tmp_path / f"out{numbers}", "--to", "single") == code
    assert "mp_rank_00/model_optim_rng.pt: process 1 wrote it, and process 0 that of the next rank" in (
        capsys.readouterr().err
    )


def test_inspect_and_verify(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(write_checkpoint(module, optimizer=True), tmp_path / "m", "--to", "megatron", "tp=2", "pp=2") == 0
    assert main(["inspect", str(tmp_path / "m")]) == 0
    told = capsys.readouterr().out
    assert "4: tensor parallel 2, pipeline 2" in told
    (tmp_path / "m" / "checkpoint.json").unlink()
    assert main(["verify", str(tmp_path / "m")]) == 0
    path = file(tmp_path / "m", "01_001")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert main(["verify", str(tmp_path / "m")]) == 1
    assert "mp_rank_01_001/model_optim_rng.pt" in capsys.readouterr().out


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("words", [(), ("vocabulary_multiple=1",)])
def test_megatron_core_has_our_logits(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Its own GPTModel takes every tensor by its name, and answers as ours does."""
    pytest.importorskip("megatron.core")
    assert convert(write_checkpoint(module), tmp_path / "m", "--to", "megatron", *words) == 0
    tree = tree_of(file(tmp_path / "m", "00"))
    tokens = torch.randint(101, (2, 12), generator=torch.Generator().manual_seed(1))
    with alone(tmp_path):
        theirs = their_model(tree["args"])
        info = theirs.load_state_dict(tree["model"], strict=False)
        assert not info.unexpected_keys
        assert all(name.endswith("_extra_state") for name in info.missing_keys)
        future = torch.ones(12, 12, dtype=torch.bool).triu(1)[None, None]
        with torch.no_grad():
            found = theirs.eval()(tokens, torch.arange(12).expand(2, 12), future)
            expected = module({"tokens": tokens})
    torch.testing.assert_close(found[..., :101], expected, atol=1e-5, rtol=0)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """megatron-core's process groups, of this process alone."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        with pytest.MonkeyPatch.context() as patch:  # its buffers are on the current CUDA device, and there is none
            patch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
            patch.setattr(random.CudaRNGStatesTracker, "fork", lambda *args: nullcontext())
            yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def their_model(args: argparse.Namespace) -> Any:
    """megatron-core's GPTModel with the settings that the file says."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size, num_attention_heads=args.num_attention_heads,
        use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, perform_initialization=True,
        activation_func=lambda x: torch.nn.functional.gelu(x, approximate="tanh"), bias_activation_fusion=False,
    )  # fmt: skip
    return GPTModel(
        config, get_gpt_layer_local_spec(), args.padded_vocab_size, args.max_position_embeddings,
        share_embeddings_and_output_weights=True,
    )  # fmt: skip
