"""One step under a layout: accumulation, clipping, evaluation."""

import pytest
import torch
from torch import nn

from recipe_core.layouts.parallel import Batch, Parallel, StepDiscarded
from recipe_core.testing.toy import ToyModel
from recipe_core.testing.toy_parts import build_model


def made(dropout: float = 0.0) -> tuple[Parallel, object]:
    torch.manual_seed(0)
    module, loss = build_model(ToyModel(dropout=dropout))
    return Parallel(module), lambda model, batch, number: loss(model(batch), batch)


def batch(rows: slice) -> Batch:
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    return {"vectors": vectors[rows], "labels": (vectors.sum(-1) > 0).long()[rows], "numbers": torch.arange(8)[rows]}


def test_four_micro_batches_give_the_gradients_of_one() -> None:
    """In float64, as processors differ in the last bits of a float32 sum. Metrics are float32 all the same."""
    whole, micro = made()
    parts, _ = made()
    for model in (whole, parts):
        model.module.double()
    samples = {
        name: value.double() if value.is_floating_point() else value for name, value in batch(slice(None)).items()
    }
    value = whole.backward([samples], micro)
    quarters = [{name: value[i : i + 2] for name, value in samples.items()} for i in range(0, 8, 2)]
    values = parts.backward(quarters, micro)
    assert values.keys() == {"loss", "accuracy"}
    torch.testing.assert_close(values, value, rtol=2 * torch.finfo(torch.float32).eps, atol=0)
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_clips_as_torch_does(limit: float) -> None:
    ours, micro = made()
    theirs, _ = made()
    for model in (ours, theirs):
        model.backward([batch(slice(None))], micro)
    norm = ours.clip(limit)
    assert norm.equal(nn.utils.clip_grad_norm_(theirs.parameters(), limit))
    assert all(p.grad.equal(q.grad) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_no_limit_leaves_gradients_alone() -> None:
    model, micro = made()
    model.backward([batch(slice(None))], micro)
    before = [p.grad.clone() for p in model.parameters()]
    assert model.clip(0) > 0
    assert all(p.grad.equal(q) for p, q in zip(model.parameters(), before, strict=True))


def test_evaluates_without_dropout_and_goes_on_training() -> None:
    model, micro = made(dropout=0.9)
    first, second = (model.evaluate(batch(slice(None)), micro)["loss"] for _ in range(2))
    assert first.equal(second)
    assert not first.requires_grad
    assert model.module.training


def test_gradients_are_completed_once_a_step_after_the_last_micro_batch() -> None:
    class Doubled(Parallel):
        calls = 0

        def complete_gradients(self) -> None:
            self.calls += 1
            for parameter in self.parameters():
                parameter.grad *= 2

    ours, micro = made()
    theirs = Doubled(made()[0].module)
    for model in (ours, theirs):
        model.backward([batch(slice(0, 4)), batch(slice(4, 8))], micro)
    assert theirs.calls == 1
    assert all(q.grad.equal(2 * p.grad) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))

    def discarding(model: nn.Module, batch: Batch, number: int) -> object:
        if number:
            raise StepDiscarded
        return micro(model, batch, number)

    with pytest.raises(StepDiscarded):
        theirs.backward([batch(slice(0, 4)), batch(slice(4, 8))], discarding)
    assert theirs.calls == 1
