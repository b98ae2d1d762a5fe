"""The model against plain code of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertForPreTraining

from recipe_bert_dp.model import BertPretrainingModel, bert_config, build, loss
from recipe_bert_dp.model_config import BertPretraining
from recipe_core.parallel import Batch

SMALL = BertPretraining(
    size="custom", layers=2, hidden=48, heads=3, intermediate=96, positions=160, vocabulary=131,
    dropout=0.0, attention_dropout=0.0, init_std=0.1,
)  # fmt: skip
LENGTHS = [150, 40, 97, 13, 60, 88]
PREDICTIONS = 12


def make(config: BertPretraining = SMALL, seed: int = 1) -> BertPretrainingModel:
    torch.manual_seed(seed)
    module, _ = build(config)
    with torch.no_grad():
        for p in module.parameters():  # biases and norms too, which would be zeros and ones
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return module


def peer_of(module: BertPretrainingModel, config: BertPretraining = SMALL) -> BertForPreTraining:
    peer = BertForPreTraining(bert_config(config))
    peer.load_state_dict(module.state_dict())
    return peer


def samples(lengths: list[int] = LENGTHS, sequence: int = 150, seed: int = 3) -> Batch:
    """Plain rows with padding; every other one has fewer predictions than places."""
    random = np.random.default_rng(seed)
    rows = len(lengths)
    batch = {name: np.zeros((rows, sequence), np.int64) for name in ("input_ids", "input_mask", "segment_ids")}
    batch |= {name: np.zeros((rows, PREDICTIONS), np.int64) for name in ("masked_lm_positions", "masked_lm_ids")}
    for row, length in enumerate(lengths):
        batch["input_ids"][row, :length] = random.integers(1, 131, length)
        batch["input_mask"][row, :length] = 1
        batch["segment_ids"][row, length // 2 : length] = 1
        count = PREDICTIONS if row % 2 else 5
        batch["masked_lm_positions"][row, :count] = np.sort(random.permutation(length - 1)[:count] + 1)
        batch["masked_lm_ids"][row, :count] = random.integers(1, 131, count)
    batch["next_sentence_labels"] = random.integers(0, 2, rows)
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def packed(batch: Batch, rows: list[list[int]], sequence: int = 160, slots: int = 3) -> Batch:
    """The same samples, several in a row, in Habana's arrays."""
    wide, some = (len(rows), sequence), (len(rows), slots)
    found = {
        name: torch.zeros(wide, dtype=torch.int64) for name in ("input_ids", "input_mask", "segment_ids", "positions")
    }
    for name in ("masked_lm_positions", "masked_lm_ids"):
        found[name] = torch.zeros(len(rows), slots * PREDICTIONS, dtype=torch.int64)
    for name in ("next_sentence_positions", "next_sentence_labels", "next_sentence_weights"):
        found[name] = torch.zeros(some, dtype=torch.int64)
    for row, numbers in enumerate(rows):
        start = used = 0
        for slot, number in enumerate(numbers):
            length = int(batch["input_mask"][number].sum())
            tokens = slice(start, start + length)
            for name in ("input_ids", "segment_ids"):
                found[name][row, tokens] = batch[name][number, :length]
            found["input_mask"][row, tokens] = slot + 1
            found["positions"][row, tokens] = torch.arange(length)
            count = int((batch["masked_lm_positions"][number] != 0).sum())
            places = slice(used, used + count)
            found["masked_lm_positions"][row, places] = batch["masked_lm_positions"][number, :count] + start
            found["masked_lm_ids"][row, places] = batch["masked_lm_ids"][number, :count]
            found["next_sentence_positions"][row, slot] = start
            found["next_sentence_labels"][row, slot] = batch["next_sentence_labels"][number]
            found["next_sentence_weights"][row, slot] = 1
            start, used = start + length, used + count
    return found


PACKED_ROWS = [[0], [1, 2, 3], [5, 4]]


def plain_loss(peer: BertForPreTraining, batch: Batch) -> tuple[Tensor, dict[str, float]]:
    """Loss as the published scripts compute it: whole logits, -100 where nothing is predicted; and accuracies."""
    labels = torch.full_like(batch["input_ids"], -100)
    for row in range(len(labels)):
        for place, word in zip(batch["masked_lm_positions"][row], batch["masked_lm_ids"][row], strict=True):
            if place:
                labels[row, place] = word
    output = peer(input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"])
    words, following = output.prediction_logits, output.seq_relationship_logits
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    masked = criterion(words.view(-1, words.shape[-1]), labels.view(-1))
    next_sentence = criterion(following.view(-1, 2), batch["next_sentence_labels"].view(-1))
    chosen = labels != -100
    values = {
        "mlm_loss": masked.item(),
        "nsp_loss": next_sentence.item(),
        "mlm_accuracy": (words.argmax(-1) == labels)[chosen].float().mean().item(),
        "nsp_accuracy": (following.argmax(-1) == batch["next_sentence_labels"]).float().mean().item(),
    }
    return masked + next_sentence, values


def gradients(module: nn.Module, value: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


@pytest.mark.parametrize("form", ["plain", "packed"])
def test_loss_and_gradients_are_those_of_transformers(form: str) -> None:
    module, batch = make(), samples()
    peer = peer_of(module)
    wanted, values = plain_loss(peer, batch)
    ours = batch if form == "plain" else packed(batch, PACKED_ROWS)
    found = loss(module(ours), ours)
    assert found["loss"].item() == pytest.approx(wanted.item(), rel=1e-6)
    for name, value in values.items():
        assert found[name].item() == pytest.approx(value, rel=1e-6), name
    assert found["real_tokens"] == sum(LENGTHS)
    assert found["sequences"] == len(LENGTHS)
    theirs = gradients(peer, wanted)
    mine = gradients(module, found["loss"])
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, atol=1e-6, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
