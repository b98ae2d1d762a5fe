"""The peers: transformers' models under its Trainer with its fastest flags, and megatron-core's GPTModel."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import data
import torch
from cases import Case
from clock import Clock, Enough
from ours import Setting


def trainer(case: Case, setting: Setting, clock: Clock, *, compiled: bool) -> dict[str, Any]:
    """Train transformers' model of the same sizes until the clock has enough; the flags that were used."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Ticks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **settings: Any) -> None:
            clock.tick()

    flags = _flags(case, compiled)
    model, samples = MODELS[case.family](case, setting)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Enough):
        arguments = TrainingArguments(output_dir=folder, **flags)
        Trainer(model=model, args=arguments, train_dataset=samples, callbacks=[Ticks()]).train()
    return {"flags": flags}


def _flags(case: Case, compiled: bool) -> dict[str, Any]:
    on_gpu = not case.dry
    flags: dict[str, Any] = {
        "per_device_train_batch_size": case.micro_batch, "gradient_accumulation_steps": case.micro_batches,
        "max_steps": 1_000_000, "bf16": on_gpu, "optim": "adamw_torch_fused", "max_grad_norm": 1.0,
        "dataloader_num_workers": 4 * on_gpu, "dataloader_pin_memory": on_gpu, "logging_steps": 10, "use_cpu": case.dry,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip
    if on_gpu:
        flags["tf32"] = True
    if case.recompute:
        flags |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    if compiled:
        flags |= {"torch_compile": True, "torch_compile_backend": "aot_eager" if case.dry else "inductor"}
    return flags


def _gpt(case: Case, setting: Setting) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(
        vocab_size=case.vocabulary, n_positions=case.sequence, n_embd=case.hidden, n_layer=case.layers,
        n_head=case.heads, resid_pdrop=case.dropout, embd_pdrop=case.dropout, attn_pdrop=case.dropout, use_cache=False,
    )  # fmt: skip
    with torch.device(case.device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model, data.Tokens(case)


def _bert(case: Case, setting: Setting) -> tuple[Any, Any]:
    from transformers import AutoModelForPreTraining, BertConfig

    config = BertConfig(
        vocab_size=case.vocabulary, hidden_size=case.hidden, num_hidden_layers=case.layers,
        num_attention_heads=case.heads, intermediate_size=4 * case.hidden,
    )  # fmt: skip
    with torch.device(case.device):
        model = AutoModelForPreTraining.from_config(config, attn_implementation="sdpa")
    return model, data.Rows(case)  # outside: its tensors are the host's


def _finetune(case: Case, setting: Setting) -> tuple[Any, Any]:
    """The model and the samples are those of our run."""
    from transformers import AutoModelForSequenceClassification

    from recipe_core.files import home
    from recipe_hf_finetune.data import encode
    from recipe_hf_finetune.data.splits import load

    source, settings = setting.job.model.config.source, setting.job.data.config
    samples = load(settings, home()).splits["train"]
    encoded = encode.encode(samples, encode.load_tokenizer(source, "main"), settings.max_length, pad=True)
    return AutoModelForSequenceClassification.from_pretrained(source, attn_implementation="sdpa"), encoded


MODELS = {"gpt": _gpt, "bert": _bert, "finetune": _finetune}


def megatron(case: Case, setting: Setting, clock: Clock) -> dict[str, Any]:
    """Train megatron-core's GPTModel in a plain loop until the clock has enough.

    Weights, gradients and moments are bf16, without wider copies, which spares it work that the others do; the
    optimizer is PyTorch's fused AdamW. Its layers are those of Transformer Engine where that is installed.
    """
    with _single_rank(case):
        model, engine = _megatron_model(case)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        positions = torch.arange(case.sequence, device=case.device).expand(case.micro_batch, -1)
        mask = torch.ones(case.sequence, case.sequence, dtype=torch.bool, device=case.device).triu(1)[None, None]
        samples = torch.randint(case.vocabulary, (64, case.micro_batch, case.sequence), device=case.device)
        place = 0
        with contextlib.suppress(Enough):
            while True:
                for _ in range(case.micro_batches):
                    ids, place = samples[place % 64], place + 1
                    loss = model(ids, positions, mask, labels=ids.roll(-1, 1)).float().mean()
                    (loss / case.micro_batches).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                clock.tick()
    return {"flags": {"layers": engine, "optimizer": "torch.optim.AdamW(fused=True), bf16 weights and moments"}}


def _megatron_model(case: Case) -> tuple[Any, str]:
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.transformer import TransformerConfig

    with_engine = find_spec("transformer_engine") is not None
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    config = TransformerConfig(
        num_layers=case.layers, hidden_size=case.hidden, num_attention_heads=case.heads, bf16=True,
        params_dtype=torch.bfloat16, hidden_dropout=case.dropout, attention_dropout=case.dropout,
        use_cpu_initialization=case.dry, gradient_accumulation_fusion=False, bias_activation_fusion=not case.dry,
        bias_dropout_fusion=not case.dry,
        masked_softmax_fusion=not case.dry and (with_engine or find_spec("scaled_masked_softmax_cuda") is not None),
        **(recompute if case.recompute and not case.dry else {}),  # which asks for CUDA's random numbers
    )  # fmt: skip
    layer = (
        gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
        if with_engine
        else gpt_layer_specs.get_gpt_layer_local_spec()
    )
    model = GPTModel(
        config=config, transformer_layer_spec=layer, vocab_size=case.vocabulary, max_sequence_length=case.sequence,
        position_embedding_type="learned_absolute", share_embeddings_and_output_weights=True,
    )  # fmt: skip
    name = "Transformer Engine" if with_engine else "megatron-core's own, without Transformer Engine"
    return model.to(case.device, torch.bfloat16), name


@contextlib.contextmanager
def _single_rank(case: Case) -> Iterator[None]:
    """A process group of one. Without a GPU, megatron-core is shown the CPU where it asks for the device."""
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo" if case.dry else "nccl", init_method=f"file://{folder}/store", world_size=1, rank=0
        )
        parallel_state.initialize_model_parallel()
        if case.dry:
            stack.enter_context(patch("torch.cuda.current_device", lambda: torch.device("cpu")))
            stack.enter_context(
                patch.object(CudaRNGStatesTracker, "fork", lambda self, name=None: contextlib.nullcontext())
            )
        else:
            tensor_parallel.model_parallel_cuda_manual_seed(1)
        yield
        dist.destroy_process_group()
