"""BERT with adapters: peft trains the same on transformers' BertForPreTraining, and merges the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipe_core import Batch, Train
from recipe_core.cli.main import main
from recipe_core.files import home
from recipe_core.hooks.registry import load
from recipe_core.layouts.parallel import Run
from recipe_core.layouts.samples.build import build_samples
from recipe_core.testing.checkpoints import convert, tensors
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

WORDS = [
    "transforms=lora", "transform.lora.rank=2", "transform.lora.alpha=6", "transform.lora.trained=cls.seq_relationship",
    "train.eval_every=0", "train.device=cpu", "layout=single", "train.micro_batch=8", "train.clip=0",
    "model.dropout=0", "model.attention_dropout=0", "data.packed=false",
]  # fmt: skip
STEPS = 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one step with the rate 0 (``first``) and of several steps (``ours``), each also converted."""
    folder = tmp_path_factory.mktemp("lora")
    first = ["train.steps=1", "train.lr=0"]
    ours = [f"train.steps={STEPS}", "train.schedule=constant", "train.warmup_steps=0", "train.lr=0.01"]
    for name, words in (("first", first), ("ours", ours)):
        run(checked_job(load(), "bert_dp:tiny", [*WORDS, *words]), folder / name)
        for form in ("hf", "peft"):
            assert convert(folder / name, folder / f"{name}-{form}", "--to", form, "--drop", "optimizer") == 0
    return folder


def test_adapters_and_the_head_alone_are_trained(folders: Path) -> None:
    first, ours = tensors(folders / "first"), tensors(folders / "ours")
    changed = {name.removeprefix("model.") for name, tensor in first.items() if not torch.equal(tensor, ours[name])}
    changed = {name for name in changed if not name.startswith(("optimizer.", "progress."))}
    assert {name for name in changed if not name.startswith("bert.encoder.layer.")} == {
        "cls.seq_relationship.weight", "cls.seq_relationship.bias",
    }  # fmt: skip
    assert all(name.endswith(("lora_a", "lora_b")) for name in changed if name.startswith("bert."))
    assert main(["eval", str(folders / "ours-hf"), "--device", "cpu"]) == 0


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_losses_and_merged_weights_are_those_of_peft(folders: Path) -> None:
    """Both begin with the same weights and adapters, and see the same samples."""
    peft = pytest.importorskip("peft")
    from transformers import BertForPreTraining

    base = BertForPreTraining.from_pretrained(folders / "first-hf")  # B is zero: nothing was merged
    model = peft.PeftModel.from_pretrained(base, folders / "first-peft", is_trainable=True)
    job = checked_job(load(), "bert_dp:tiny", [*WORDS, f"train.steps={STEPS}"])
    samples, train = build_samples(job.data, context(job.train)), job.train
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == job.facts.model.parameters  # type: ignore[union-attr]
    groups = [
        {"params": [p for p in trained if (p.ndim > 1) == decays], "weight_decay": train.weight_decay * decays}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=train.betas, eps=train.eps)
    losses = []
    for step in range(STEPS):
        batch = {name: tensor.long() for name, tensor in samples.read("train", step * 8, 8).items()}
        loss = model(
            input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"],
            labels=labels(batch), next_sentence_label=batch["next_sentence_labels"],
        ).loss  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    ours = [row["loss"] for row in read_rows(folders / "ours" / METRICS) if "loss" in row]
    assert ours == pytest.approx(losses, abs=2e-5)
    assert losses[-1] != pytest.approx(losses[0], abs=0.01)

    reread = peft.PeftModel.from_pretrained(
        BertForPreTraining.from_pretrained(folders / "first-hf"), folders / "ours-peft"
    )
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(reread.state_dict()[name], tensor, atol=1e-4, rtol=0)
    merged = reread.merge_and_unload().state_dict()
    whole = BertForPreTraining.from_pretrained(folders / "ours-hf").state_dict()
    assert merged.keys() == whole.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(merged[name], tensor, atol=1e-6, rtol=0)


def labels(batch: Batch) -> Tensor:
    """The labels of transformers: -100 where nothing is predicted."""
    answers = torch.full_like(batch["input_ids"], -100)
    answers.scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])
    answers[:, 0] = -100  # unused places are at position 0
    return answers


def context(train: Train) -> Run:
    """One process."""
    return Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1, train=train,
        cache=home(), vocabulary=1000,
    )  # fmt: skip
