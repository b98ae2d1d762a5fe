"""The model as a whole."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import masked_mean_loss as loss
from recipe_core.layouts.parallel import Batch
from recipe_core.train.building.recompute import recompute
from recipe_megatron_gpt.model.gpt import GptModel, build
from recipe_megatron_gpt.settings import Gpt

SMALL = Gpt(layers=2, hidden=48, heads=3, positions=160, vocabulary=96, dropout=0.0, attention_dropout=0.0)
DROPPING = replace(SMALL, dropout=0.1, attention_dropout=0.1)


def make(config: Gpt = SMALL, seed: int = 1) -> GptModel:
    torch.manual_seed(seed)
    return build(config)[0]


def batch_of(samples: int = 2, length: int = 150, vocabulary: int = 96) -> Batch:
    text = torch.randint(vocabulary, (samples, length + 1), generator=torch.Generator().manual_seed(5))
    return {"tokens": text[:, :-1].contiguous(), "labels": text[:, 1:].contiguous()}


def gradients(module: nn.Module, value: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def test_losses_are_those_of_the_logits() -> None:
    module, batch = make(), batch_of()
    logits = module({"tokens": batch["tokens"]})
    losses = module(batch)
    assert logits.shape == (2, 150, 96)
    assert losses.shape == (2, 150)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, F.cross_entropy(logits.mT, batch["labels"], reduction="none"))
    assert torch.equal(loss(losses, batch)["loss"], losses.mean())


def test_the_mask_chooses_the_tokens_of_the_mean() -> None:
    batch = batch_of()
    losses = make()(batch)
    mask = torch.zeros(2, 150)
    mask[0, 3] = mask[1, 7] = 1
    torch.testing.assert_close(loss(losses, {**batch, "loss_mask": mask})["loss"], (losses[0, 3] + losses[1, 7]) / 2)
    assert loss(losses, {**batch, "loss_mask": torch.zeros(2, 150)})["loss"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # they take different kernels on a CPU
def test_a_token_sees_none_after_it(dtype: torch.dtype) -> None:
    module, tokens = make().to(dtype), batch_of()["tokens"]
    changed = tokens.clone()
    changed[:, 140:] = (changed[:, 140:] + 1) % 96
    before, after = module({"tokens": tokens}), module({"tokens": changed})
    assert torch.equal(before[:, :140], after[:, :140])
    assert not torch.equal(before[:, 140], after[:, 140])


def test_the_output_is_tied_to_the_embedding() -> None:
    module = make()
    assert "tokens.weight" in dict(module.named_parameters())
    assert not [name for name, _ in module.named_parameters() if "head" in name or "lm" in name]
    with torch.no_grad():
        module.tokens.weight.zero_()
    assert torch.equal(module({"tokens": batch_of()["tokens"]}), torch.zeros(2, 150, 96))


def test_values_follow_from_seed_and_name_alone() -> None:
    first, again, other = (dict(make(seed=seed).named_parameters()) for seed in (1, 1, 2))
    deeper = dict(make(Gpt(layers=3, hidden=48, heads=3, positions=160, vocabulary=128)).named_parameters())
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert value.ndim == 1 or not torch.equal(value, other[name])
    for name in ("positions.weight", "blocks.0.attention.qkv.weight", "blocks.1.mlp.up.weight"):
        assert torch.equal(first[name], deeper[name])
    state = torch.get_rng_state()
    build(SMALL)
    assert torch.equal(state, torch.get_rng_state())


def test_values_have_the_deviations_of_gpt_2() -> None:
    parameters = dict(make(Gpt(layers=8, hidden=256, heads=4, vocabulary=512, init_std=0.02)).named_parameters())
    for name in ("tokens.weight", "positions.weight", "blocks.3.attention.qkv.weight", "blocks.3.mlp.up.weight"):
        assert parameters[name].std().item() == pytest.approx(0.02, rel=0.02)
        assert abs(parameters[name].mean().item()) < 3e-4
    for name in ("blocks.3.attention.output.weight", "blocks.3.mlp.down.weight"):
        assert parameters[name].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    for name, value in parameters.items():
        if value.ndim == 1:
            assert torch.equal(value, torch.full_like(value, float("norm.weight" in name)))


def test_it_can_be_built_without_memory_and_filled_later() -> None:
    with torch.device("meta"):
        module, _ = build(SMALL)
    assert all(p.is_meta for p in module.parameters())
    module.to_empty(device="cpu")
    torch.manual_seed(1)
    module.reset_parameters()
    for (name, value), (_, wanted) in zip(module.named_parameters(), make().named_parameters(), strict=True):
        assert torch.equal(value, wanted), name


def test_attention_splits_by_heads() -> None:
    """The results of tensor-parallel ranks, from their rows of qkv and columns of output, add up to the whole."""
    whole = (
        make(Gpt(layers=1, hidden=64, heads=4, positions=32, vocabulary=96, attention_dropout=0.0)).blocks[0].attention
    )
    hidden = torch.randn(2, 20, 64)
    total = whole.output.bias.detach().clone()
    for heads in (slice(0, 2), slice(2, 4)):
        part = copy.deepcopy(whole)
        rows = part.qkv.weight.unflatten(0, (4, 3 * 16))
        part.qkv = nn.Linear(64, 96)
        part.qkv.weight = nn.Parameter(rows[heads].flatten(0, 1))
        part.qkv.bias = nn.Parameter(whole.qkv.bias.unflatten(0, (4, -1))[heads].flatten())
        part.output = nn.Linear(32, 64, bias=False)
        part.output.weight = nn.Parameter(whole.output.weight.unflatten(1, (4, 16))[:, heads].flatten(1))
        total = total + part(hidden)
    torch.testing.assert_close(total, whole(hidden))


def test_dropout_follows_the_seed_and_rests_in_evaluation() -> None:
    module, batch = make(DROPPING), batch_of()

    def losses(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return module(batch)

    assert torch.equal(losses(3), losses(3))
    assert not torch.equal(losses(3), losses(4))
    module.eval()
    assert torch.equal(losses(3), losses(4))
    assert torch.equal(losses(3), make()(batch))


def test_recomputed_blocks_give_equal_gradients() -> None:
    module, batch = make(DROPPING), batch_of()
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(gradients(module, module(batch).mean()))
        recompute(module, "blocks.*")
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


@pytest.mark.parametrize("mixed", [False, True])
def test_bfloat16_is_close_to_fp32(mixed: bool) -> None:
    module, batch = make(), batch_of()
    wanted = gradients(module, module(batch).mean())
    expected = module(batch).detach()
    module = module if mixed else module.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        losses = module(batch)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected, atol=0.05, rtol=0)
    for name, value in gradients(module, losses.mean()).items():
        assert value.dtype == (torch.float32 if mixed else torch.bfloat16)
        # The keys' biases have a gradient of zero but for rounding, so each is measured against its whole tensor.
        assert (value.float() - wanted[name]).norm() <= 0.05 * wanted[name].norm() + 1e-3, name


@pytest.mark.parametrize("mixed", [False, True])
def test_it_compiles(mixed: bool) -> None:
    module, batch = make(replace(SMALL, layers=1)), batch_of(1, 8)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        wanted, got = gradients(module, module(batch).mean()), gradients(module, compiled(batch).mean())
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, atol=2e-3 if mixed else 1e-6, rtol=1e-2 if mixed else 1e-5)


def test_it_learns_a_batch_by_heart() -> None:
    module, batch = make(DROPPING), batch_of(1, 32)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    values = []
    for _ in range(60):
        value = module(batch).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[0] == pytest.approx(4.56, abs=0.1)  # ln 96
    assert values[-1] < 0.5


@pytest.mark.peer
def test_it_computes_what_gpt2_of_transformers_computes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=160, n_embd=48, n_layer=2, n_head=3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    peer, module, batch = transformers.GPT2LMHeadModel(config), make(), batch_of()
    theirs = dict(peer.named_parameters())
    with torch.no_grad():
        for p in theirs.values():  # also biases and norms, which would be zeros and ones
            p.add_(0.1 * torch.randn(p.shape))
        for name, p in module.named_parameters():
            p.copy_(_from_gpt2(name, theirs, heads=3))
    logits = module({"tokens": batch["tokens"]})
    their_logits = peer(batch["tokens"]).logits
    torch.testing.assert_close(logits, their_logits, atol=1e-5, rtol=1e-5)
    F.cross_entropy(their_logits.mT, batch["labels"]).backward()
    grads = {name: p.grad for name, p in theirs.items()}
    for name, value in gradients(module, loss(module(batch), batch)["loss"]).items():
        torch.testing.assert_close(value, _from_gpt2(name, grads, heads=3), atol=1e-5, rtol=1e-5)


def _from_gpt2(name: str, source: dict[str, Tensor], heads: int) -> Tensor:
    """Our weights as those of transformers' GPT-2, which are transposed and whose q, k and v are not by heads."""
    for ours, peer in {
        "tokens.": "transformer.wte.", "positions.": "transformer.wpe.", "blocks.": "transformer.h.",
        "attention_norm": "ln_1", "mlp_norm": "ln_2", "attention.qkv": "attn.c_attn", "mlp.up": "mlp.c_fc",
        "attention.output": "attn.c_proj", "mlp.down": "mlp.c_proj",
    }.items():  # fmt: skip
        name = name.replace(ours, peer)
    value = source["transformer.ln_f" + name[4:] if name.startswith("norm") else name]
    if "c_" in name and value.ndim == 2:
        value = value.T
    if "c_attn" in name:
        value = value.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
    return value


def test_building_it_imports_no_compiler() -> None:
    """Drawing values on the meta device does, for a second."""
    code = (
        "import sys; from recipe_megatron_gpt.model.gpt import build; from recipe_megatron_gpt.settings import Gpt; "
        "build(Gpt(layers=1, hidden=32)); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
