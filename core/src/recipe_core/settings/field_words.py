"""Names of settings in other tools, and their equivalents here. Imports no torch.

A hint is shown only if the recipe has the setting that it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.hooks.kinds import PARTS
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.train import Train
from recipe_core.settings.values import paths


@dataclass(frozen=True)
class Hint:
    """A setting of ours for a name of another tool."""

    needs: str
    """The setting that the recipe must have, ``layout:NAME`` for a layout that must be installed, or empty for none."""
    write: str
    """The text to write; ``{value}`` stands for the user's value, or N."""
    note: str = ""


def _is(path: str, value: str = "{value}", note: str = "") -> Hint:
    return Hint(path, f"{path}={value}", note)


_PROCESSES = Hint("", "--processes {value}")
_STEPS = _is("train.steps", "N", "training is counted in steps")
_BF16 = _is("train.precision", "bf16_mixed", "the precisions are fp32, bf16_mixed, bf16 and fp8")
_OTHERS = _is("train.precision", "bf16_mixed", "fp16 and int8 are not supported; fp8 is, on GPUs that have it")
_FP8 = _is("train.precision", "fp8")
_ZERO = Hint("layout:zero1", "layout=zero1", "fsdp shards the weights too")
_BATCH = _is("train.global_batch", note="samples of a step, over all processes; train.micro_batch: at once")
_RECOMPUTE = _is("train.activation_checkpointing", "true")
_ACCUMULATED = "global_batch / (micro_batch x processes) micro batches are accumulated"
_RESUME = _is("train.resume", "PATH", "a run continues by itself where --out names its folder")
_NODES = Hint("", "recipe submit NAME --nodes {value}", "or start the same line on every node by torchrun or srun")
_FILE = Hint("", "recipe run {value}", "the file stands in the place of the recipe")
_TRACKERS = "a tracker of that name comes with a plugin, if `recipe ls` lists it"

_TABLE: tuple[tuple[str, tuple[Hint, ...]], ...] = (
    ("lr learning_rate max_lr peak_lr base_lr", (_is("train.lr"),)),
    ("batch batch_size bs total_batch_size train_batch_size global_batch_size", (_BATCH,)),
    (
        "micro_batch_size per_device_train_batch_size per_device_batch_size train_micro_batch_size_per_gpu",
        (_is("train.batch_per_process"), _is("train.micro_batch")),
    ),
    (
        "gradient_accumulation_steps grad_accum grad_accum_steps accumulate_grad_batches",
        (_is("train.global_batch", "N", _ACCUMULATED),),
    ),
    ("epochs num_epochs num_train_epochs max_epochs n_epochs", (_is("train.epochs"), _STEPS)),
    ("steps max_steps max_iters train_iters num_steps iterations total_steps", (_is("train.steps"),)),
    ("warmup warmup_iters num_warmup_steps lr_warmup_iters", (_is("train.warmup_steps"),)),
    ("warmup_fraction lr_warmup_fraction warmup_proportion", (_is("train.warmup_ratio"),)),
    ("max_grad_norm clip_grad grad_clip gradient_clipping gradient_clip_val clip_grad_norm", (_is("train.clip"),)),
    ("wd decay", (_is("train.weight_decay"),)),
    ("adam_epsilon adam_eps epsilon", (_is("train.eps"),)),
    ("beta1 beta2 adam_beta1 adam_beta2", (_is("train.betas", "0.9,0.999"),)),
    ("optim", (_is("train.optimizer"),)),
    ("scheduler lr_scheduler lr_scheduler_type lr_decay_style", (_is("train.schedule"),)),
    ("amp mixed_precision dtype torch_dtype bf16", (_BF16,)),
    ("fp16 half int8 load_in_8bit load_in_4bit", (_OTHERS,)),
    ("fp8 float8 fp8_training", (_FP8,)),
    ("gradient_checkpointing recompute_activations checkpoint_activations", (_RECOMPUTE,)),
    ("torch_compile", (_is("train.compile", "true"),)),
    ("random_seed", (_is("train.seed"),)),
    ("cuda gpu use_gpu accelerator", (_is("train.device", "auto", "it takes the accelerator that there is"),)),
    ("log_interval logging_steps log_freq print_every", (_is("train.log_every"),)),
    ("eval_interval eval_steps evaluation_steps val_check_interval eval_freq", (_is("train.eval_every"),)),
    ("save_interval save_steps checkpoint_every save_freq", (_is("train.save_every"),)),
    ("save_total_limit keep_last", (_is("train.keep"),)),
    ("wandb use_wandb report_to mlflow tensorboard logger tracker", (_is("train.trackers", "NAME", _TRACKERS),)),
    ("ema ema_decay use_ema model_ema", (_is("train.callbacks", "ema"),)),
    ("early_stopping early_stopping_patience patience", (_is("train.callbacks", "early_stopping"),)),
    ("rampup_batch_size batch_size_warmup", (_is("train.callbacks", "batch_ramp"),)),
    ("num_layers n_layer n_layers num_hidden_layers depth", (_is("model.layers"),)),
    ("hidden_size n_embd d_model hidden_dim dim embed_dim", (_is("model.hidden"),)),
    ("num_attention_heads n_head n_heads num_heads", (_is("model.heads"),)),
    ("ffn_hidden_size intermediate_size d_ff", (_is("model.intermediate"),)),
    ("vocab_size n_vocab", (_is("model.vocabulary"),)),
    ("max_position_embeddings n_positions", (_is("model.positions"),)),
    ("hidden_dropout dropout_rate", (_is("model.dropout"),)),
    (
        "seq_len seq_length sequence_length max_seq_length max_seq_len block_size context_length n_ctx",
        (_is("data.sequence"), _is("data.max_length")),
    ),
    (
        "data data_path data_dir data_files dataset dataset_path train_data train_file train_files files inputs corpus",
        (_is("data.files"), _is("data.train"), _is("data.folder")),
    ),
    ("task_name", (_is("data.task"),)),
    ("model_name model_name_or_path pretrained base_model", (_is("model.source"), _is("train.init_from"))),
    ("resume_from_checkpoint resume_from load load_checkpoint", (_RESUME,)),
    ("output_dir out_dir save_dir output out logdir", (Hint("", "--out {value}"),)),
    ("processes num_processes nproc nproc_per_node gpus num_gpus n_gpus devices world_size ranks", (_PROCESSES,)),
    ("nodes num_nodes nnodes", (_NODES,)),
    ("config config_file cfg yaml c", (_FILE,)),
    ("deepspeed zero zero_stage zero_optimization", (_ZERO,)),
    ("fsdp fully_shard", (Hint("layout:fsdp", "layout=fsdp"),)),
    ("ddp data_parallel", (Hint("layout:ddp", "layout=ddp"),)),
    ("tp tensor_parallel tensor_model_parallel_size", (Hint("layout:tp", "layout=tp layout.tp={value}"),)),
    ("pp pipeline_parallel pipeline_model_parallel_size", (Hint("layout:pp", "layout=pp layout.pp={value}"),)),
    ("variant size", (Hint("", "recipe run RECIPE:{value}", "`recipe ls` lists the variants"),)),
    ("continue restart resume", (Hint("", "--out FOLDER", "the folder of the run, which the same line continues"),)),
)  # fmt: skip
_SOURCES = {"data": ("data.files", "data.train"), "model": ("model.source",)}
"""Settings that take a file or a trained model, by the part whose name was expected."""
_UNNAMED = re.compile(r"(?P<kind>data|model): no (dataset|model) named '(?P<value>[^']*)'")
UNKNOWN = re.compile(r"(?P<path>[\w.]+): no such (?P<what>section|setting)")
"""The beginning of a problem about an unknown name."""
WORDS: Mapping[str, tuple[Hint, ...]] = {word: hints for words, hints in _TABLE for word in words.split()}
"""Hints by name; the first that fits counts."""


def settings_of(registry: Registry, sections: Mapping[str, Any], train: type[Train]) -> set[str]:
    """Return the paths of all settings of a recipe with the parts that ``sections`` name (``use``)."""
    known = set(paths(train, "train"))
    for kind in PARTS:
        name = str(sections.get(kind, {}).get("use"))
        if name in registry.names(kind):
            known |= paths(registry.get(kind, name).config, kind).keys()
    return known


def words_for(word: str, value: str, known: set[str], registry: Registry) -> str:
    """Return a hint for the name ``word`` with ``value`` in a recipe with the settings ``known``; empty: none."""
    word = word.lstrip("-").replace("-", "_")
    if word in known and word not in WORDS:
        return f"write `{word}={value or 'VALUE'}`, without dashes"
    last = word.rpartition(".")[2].lower()
    for hint in WORDS.get(last, ()):
        if _fits(hint.needs, known, registry):
            typed = value if value and value.lower() not in ("true", "false") else "N"
            written = hint.write.replace("{value}", typed)
            return f"write `{written}`{hint.note and f' ({hint.note})'}"
    same = sorted(path for path in known if path.rpartition(".")[2] == last)
    return "write " + " or ".join(f"`{path}={value or 'N'}`" for path in same) if same else ""


def in_our_words(problem: str, typed: Mapping[str, Any], known: set[str], registry: Registry) -> str:
    """Return ``problem``, with a hint if it is about a name that other tools use."""
    unknown = UNKNOWN.match(problem)
    if unknown is None:
        return problem
    value: Any = typed
    for name in unknown["path"].split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    path, inside = unknown["path"], {}
    if isinstance(value, Mapping):
        value, inside = value.get("use"), value
    text = words_for(path, "" if value is None else str(value), known, registry)
    if not text and inside and "did you mean" not in problem:  # the first setting of the section may be known
        name, value = next(iter(inside.items()))
        text = words_for(f"{path}.{name}", str(value), known, registry)
    return f"{unknown['path']}: no such {unknown['what']}; {text}" if text else problem


def as_setting(problem: str, known: set[str]) -> str:
    """Return ``problem``, with a hint if a file or a trained model was given instead of the name of a part."""
    unnamed = _UNNAMED.match(problem)
    if unnamed is None or (unnamed["kind"] == "data" and not re.search(r"[./]", unnamed["value"])):
        return problem
    path = next((path for path in _SOURCES[unnamed["kind"]] if path in known), "")
    return f"{problem}; write `{path}={unnamed['value']}`" if path else problem


def _fits(needs: str, known: set[str], registry: Registry) -> bool:
    kind, colon, name = needs.partition(":")
    if colon:
        return name in registry.names("layout") and kind == "layout"
    return not needs or needs in known
