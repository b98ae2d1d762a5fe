"""The model against plain code of transformers, with all logits and padded rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import BertForPreTraining

from recipe_bert_dp.model.bert import BertPretrainingModel, bert_config, build, loss
from recipe_bert_dp.settings import BertPretraining
from recipe_bert_dp.testing import packed_rows, plain_rows
from recipe_core.layouts.parallel import Batch

SMALL = BertPretraining(
    size="custom", layers=2, hidden=48, heads=3, intermediate=96, positions=160, vocabulary=131,
    dropout=0.0, attention_dropout=0.0, init_std=0.1,
)  # fmt: skip
LENGTHS = [150, 40, 97, 13, 60, 88]
ROWS = [[0], [1, 2, 3], [5, 4]]
FORMS = ["plain", "packed"]


def make(config: BertPretraining = SMALL) -> BertPretrainingModel:
    torch.manual_seed(1)
    module, _ = build(config)
    with torch.no_grad():
        for p in module.parameters():  # biases and norms too, which would be zeros and ones
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return module


def peer_of(module: BertPretrainingModel) -> BertForPreTraining:
    peer = BertForPreTraining(bert_config(SMALL))
    peer.load_state_dict(module.state_dict())
    return peer


def batch_of(form: str = "plain", seed: int = 3) -> Batch:
    plain = plain_rows(LENGTHS, sequence=150, predictions=11, vocabulary=131, seed=seed)
    return plain if form == "plain" else packed_rows(plain, ROWS, sequence=160)


def peers_loss(peer: BertForPreTraining, batch: Batch) -> tuple[Tensor, dict[str, float]]:
    """Loss as in the published scripts, with labels of -100 where nothing is predicted; and the logged metrics."""
    labels = torch.full_like(batch["input_ids"], -100)
    for row in range(len(labels)):
        for place, word in zip(batch["masked_lm_positions"][row], batch["masked_lm_ids"][row], strict=True):
            if place:
                labels[row, place] = word
    output = peer(input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"])
    words, following = output.prediction_logits, output.seq_relationship_logits
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    masked = criterion(words.view(-1, words.shape[-1]), labels.view(-1))
    next_sentence = criterion(following, batch["next_sentence_labels"])
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


@pytest.mark.parametrize("form", FORMS)
def test_loss_and_gradients_are_those_of_transformers(form: str) -> None:
    module, batch = make(), batch_of(form)
    peer = peer_of(module)
    expected_loss, values = peers_loss(peer, batch_of())
    metrics = loss(module(batch), batch)
    assert metrics["loss"].item() == pytest.approx(expected_loss.item(), rel=1e-6)
    for name, value in values.items():
        assert metrics[name].item() == pytest.approx(value, rel=1e-6), name
    assert metrics["real_tokens"] == sum(LENGTHS)
    assert metrics["sequences"] == len(LENGTHS)
    expected, actual = gradients(peer, expected_loss), gradients(module, metrics["loss"])
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert value.abs().max() > 1e-6 or name.endswith("key.bias"), name  # a comparison of zeros says nothing
        torch.testing.assert_close(actual[name], value, atol=1e-6, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("form", FORMS)
def test_ten_steps_are_those_of_transformers(form: str) -> None:
    module = make()
    peer = peer_of(module)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01) for model in (module, peer)]
    first = last = 0.0
    for step in range(10):
        batch = batch_of(form, seed=step % 2)
        actual, expected = loss(module(batch), batch)["loss"], peers_loss(peer, batch_of(seed=step % 2))[0]
        assert actual.item() == pytest.approx(expected.item(), abs=1e-5)
        for optimizer, value in zip(optimizers, (actual, expected), strict=True):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        first, last = first or actual.item(), actual.item()
    assert last < first - 0.5
    weights = dict(module.named_parameters())
    for name, value in peer.named_parameters():
        # Adam divides by the gradient's size, so the keys' biases, whose true gradient is zero, move by rounding alone.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=0, msg=lambda text, n=name: f"{n}: {text}")


def test_hits_are_those_of_the_peer() -> None:
    """Labels are the peer's most likely tokens, so that there are hits."""
    module, batch = make(), batch_of()
    with torch.no_grad():
        output = peer_of(module).eval()(
            input_ids=batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"]
        )
    likeliest = output.prediction_logits.argmax(-1).gather(1, batch["masked_lm_positions"])
    right = torch.arange(11) % 3 == 0
    batch["masked_lm_ids"] = torch.where(right, likeliest, (likeliest + 1) % 131)
    batch["next_sentence_labels"] = output.seq_relationship_logits.argmax(-1)
    used = batch["masked_lm_positions"] != 0
    metrics = loss(module(batch), batch)
    assert metrics["mlm_accuracy"].item() == pytest.approx((right & used).sum().item() / used.sum().item())
    assert metrics["nsp_accuracy"] == 1


def test_rows_do_not_depend_on_what_shares_them() -> None:
    """Neither other samples of a row, nor padding, nor the row's length changes the loss of a sample."""
    module = make()
    plain = plain_rows([30, 50, 20], sequence=60, predictions=4, vocabulary=131)
    both = packed_rows(plain, [[0, 1], [2]], sequence=100, slots=2)
    alone = packed_rows(plain, [[1], [2]], sequence=70, slots=1)
    with torch.no_grad():
        in_shared, separate = module(both), module(alone)
    torch.testing.assert_close(in_shared.masked_losses[0, 2:6], separate.masked_losses[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(in_shared.masked_losses[1, :2], separate.masked_losses[1, :2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(in_shared.next_losses[:, :1][[1]], separate.next_losses[[1]], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(in_shared.next_losses[0, 1], separate.next_losses[0, 0], atol=1e-5, rtol=1e-5)


def test_a_batch_without_predictions_has_a_loss() -> None:
    module, batch = make(), batch_of()
    batch["masked_lm_positions"].zero_()
    metrics = loss(module(batch), batch)
    assert metrics["mlm_loss"] == 0
    assert metrics["loss"] == metrics["nsp_loss"]


def test_its_weights_are_a_checkpoint_of_hugging_face(tmp_path: Path) -> None:
    """from_pretrained loads the weights, each once, and gives an equal loss."""
    from safetensors.torch import save_file

    module, batch = make(), batch_of()
    weights = dict(module.named_parameters())
    save_file({name: p.detach() for name, p in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    module.config.save_pretrained(tmp_path)
    peer, notes = BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not notes["unexpected_keys"]
    assert not notes["missing_keys"]
    assert peer.config.architectures == ["BertForPreTraining"]
    expected_loss, _ = peers_loss(peer, batch)
    assert loss(module(batch), batch)["loss"].item() == pytest.approx(expected_loss.item(), rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mixed", [False, True])
def test_bfloat16_is_as_good_as_that_of_transformers(mixed: bool, form: str) -> None:
    """Errors of loss and gradients against fp32 are at most slightly larger than the peer's."""
    exact, batch = make(), batch_of(form)
    expected = loss(exact(batch), batch)["loss"]
    exact_gradients = gradients(exact, expected)
    errors = {}
    for name in ("model", "peer"):
        module = make() if name == "model" else peer_of(make())
        module = module if mixed else module.to(torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            value = loss(module(batch), batch)["loss"] if name == "model" else peers_loss(module, batch_of())[0]
        module_gradients = gradients(module, value)
        assert {g.dtype for g in module_gradients.values()} == {torch.float32 if mixed else torch.bfloat16}
        squares = [(g.float() - exact_gradients[name]).square().sum() for name, g in module_gradients.items()]
        errors[name] = torch.stack(squares).sum().sqrt().item(), abs(value.item() - expected.item())
        assert name == "peer" or value.dtype == torch.float32
    assert errors["model"][0] < 1.1 * errors["peer"][0]
    assert errors["model"][1] < 0.01
