"""Every shipped variant that has a source against the numbers that were published there.

``departs`` says where a variant does not follow its source, and why. Read in the files of these commits:

- samples: aws-neuron-samples da789e65a50b, torch-neuronx/training/dp_bert_hf_pretrain: the defaults of
  dp_bert_large_hf_pretrain_hdf5.py, and run_dp_bert_large_hf_pretrain_bf16_{s128,s512_phase2}.sh on 32 NeuronCores
- nxd: neuronx-distributed fbac349b61a3, examples/training/tp_dp_bert_hf_pretrain: the defaults of its script
- reference: aws-neuron-reference-for-megatron-lm 4bc0cfb6322a, examples/pretrain_gpt3_6.7B_32layers_bf16.sh; for
  several machines 2464eaaea87f, ..._bs1024_slurm.sh and pretrain_gpt3_6.7B.slurm
- nemo: neuronx-nemo-megatron f4743cef5a1c, nemo/examples/nlp/language_modeling/gpt_6.7b.sh, test.sh and train_setup.sh,
  which replace the reference

Cited:

- tutorial: the batch, degree and processes of AWS's pages for nxd's script (64 samples, 64 micro steps, tp 8, a
  trn1.32xlarge); mrpc: of its page for fine-tuning with run_glue.py
- nvidia: DeepLearningExamples 042e8724f074, PyTorch/LanguageModeling/BERT/scripts/run_pretraining.sh, on 8 GPUs
- bert: Devlin and others (2019), appendix A.2; gpt2: Radford and others (2019), table 2; nanogpt: its train_gpt2.py
- smollm: the repository's pre-training/smollm1/config_smollm1_135M.yaml at 45a1be840c50, and config.json of 360M
- llama3: config.json of Meta's 8B and of 3.2 1B; Grattafiori and others (2024), table 3 and section 3.4.1
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.main import main
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.settings.job import Job, resolve
from recipe_core.train.start.check import checked_job, machine
from recipe_core.train.start.check.layout import layout_problems

BERT_LARGE = {"layers": 24, "hidden": 1024, "heads": 16, "intermediate": 4096, "vocabulary": 30522}  # bert
PHASE1 = {"sequence": 128, "max_predictions": 20}  # samples: --max_pred_len, the data set's sequence length
PHASE2 = {"sequence": 512, "max_predictions": 80}  # samples: MAX_PRED_LEN, SEQ_LEN
GPT3 = {"layers": 32, "hidden": 4096, "heads": 32, "positions": 2048, "dropout": 0.0, "attention_dropout": 0.0}
# reference: --num-layers --hidden-size --num-attention-heads --max-position-embeddings --hidden-dropout
GPT3_VOCABULARY = {"vocabulary": 50304}  # reference: GPT-2's 50,257 made divisible by 128, which tp 8 needs a part of
TEAMS = {
    "use": "tp",
    "tp": 8,
    "sequence_parallel": True,
}  # TP 8 in both; nemo: sequence_parallel

OURS = {f"megatron_gpt:own-{size}" for size in ("1mb", "10mb", "100mb", "10mb-gpu", "100mb-gpu")}
"""Variants without a source: they are sized for texts of one's own on two cores, or on a GPU."""
PUBLISHED: dict[str, dict[str, Any]] = {
    "bert_dp:base": {
        "processes": 1,  # bert: 4 TPUs, of which nothing follows here
        "layout": {"use": "ddp"},
        "sizes": {"layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "vocabulary": 30522},  # bert
        "data": PHASE1,
        # bert: "batch size of 256 sequences", "learning rate of 1e-4", "warmup over the first 10,000 steps", 90 % of
        # 1,000,000 steps with 128 tokens, "L2 weight decay of 0.01"
        "train": {"global_batch": 256, "lr": 1e-4, "warmup_steps": 10_000, "steps": 900_000, "weight_decay": 0.01,
                  "betas": (0.9, 0.999), "schedule": "linear"},
    },
    "bert_dp:large-phase1": {
        "processes": 32,  # samples: NUM_NEURONCORES
        "layout": {"use": "ddp"},
        "sizes": BERT_LARGE,
        "data": PHASE1,
        # samples: BATCH_SIZE=16 GRAD_ACCUM_USTEPS=32, --lr --max_steps --warmup_steps, bf16 and stochastic rounding
        "train": {"micro_batch": 16, "global_batch": 16 * 32 * 32, "lr": 4e-4, "steps": 28_125, "warmup_steps": 2000,
                  "precision": "bf16", "stochastic_rounding": True, "optimizer": "adamw", "schedule": "linear",
                  "optimizer_states": "weights", "weight_decay": 0.01, "clip": 1.0},
    },
    "bert_dp:large-phase2": {
        "processes": 32,
        "layout": {"use": "ddp"},
        "sizes": BERT_LARGE,
        "data": PHASE2,
        # samples: BATCH_SIZE=2 GRAD_ACCUM_USTEPS=512 LR MAX_STEPS WARM_UP
        "train": {"micro_batch": 2, "global_batch": 2 * 32 * 512, "lr": 2.8e-4, "steps": 1563, "warmup_steps": 781,
                  "precision": "bf16", "stochastic_rounding": True, "optimizer": "adamw", "schedule": "linear"},
    },
    "bert_dp:large-lamb-phase1": {
        "processes": 8,  # nvidia: num_gpus
        "layout": {"use": "ddp"},
        "sizes": BERT_LARGE,
        "data": PHASE1,
        # nvidia: train_batch_size 8192 a GPU, gradient_accumulation_steps 128, learning_rate, train_steps,
        # warmup_proportion; departs: fp16 there
        "train": {"global_batch": 8 * 8192, "micro_batch": 8192 // 128, "lr": 6e-3, "steps": 7038,
                  "warmup_ratio": 0.2843, "optimizer": "lamb", "schedule": "polynomial", "schedule_power": 0.5,
                  "precision": "bf16_mixed"},
    },
    "bert_dp:large-lamb-phase2": {
        "processes": 8,
        "layout": {"use": "ddp"},
        "sizes": BERT_LARGE,
        "data": PHASE2,
        # nvidia: train_batch_size_phase2 4096, gradient_accumulation_steps_phase2 512, and so on
        "train": {"global_batch": 8 * 4096, "micro_batch": 4096 // 512, "lr": 4e-3, "steps": 1563,
                  "warmup_ratio": 0.128, "optimizer": "lamb", "schedule": "polynomial", "precision": "bf16_mixed"},
    },
    "bert_tp:large": {
        "processes": 32,  # tutorial
        "layout": {"use": "tp", "tp": 8, "sequence_parallel": False},  # tutorial
        "sizes": BERT_LARGE,
        "data": PHASE1,
        # tutorial: --batch_size 64 --grad_accum_usteps 64 on 4 teams; nxd: --lr --max_steps --warmup_steps, bf16
        "train": {"micro_batch": 64, "global_batch": 64 * 64 * 4, "lr": 4e-4, "steps": 28_125, "warmup_steps": 2000,
                  "precision": "bf16", "stochastic_rounding": True, "optimizer": "adamw", "schedule": "linear"},
    },
    "megatron_gpt:6.7b": {
        "processes": 32,  # reference: NUM_NEURONCORES; nemo: PROCESSES_PER_NODE
        "layout": TEAMS,
        "model": {**GPT3, **GPT3_VOCABULARY, "init_std": 0.02},  # Megatron-LM's default of --init-method-std
        "data": {"sequence": 2048},  # reference: --seq-length
        # reference: --global-batch-size --micro-batch-size --lr --min-lr --lr-decay-style --lr-warmup-fraction
        # --weight-decay --clip-grad, Megatron-LM's default betas; nemo: TRAIN_ITERS, ACT_CHKPNT_GRANULARITY=full.
        # departs: bf16_mixed, where both keep bf16 weights (XLA_USE_BF16) or master weights: fp32 weights train alike
        # on every device
        "train": {"global_batch": 64, "micro_batch": 1, "lr": 1.5e-4, "min_lr": 1e-5, "schedule": "cosine",
                  "warmup_ratio": 0.01, "weight_decay": 0.01, "clip": 1.0, "betas": (0.9, 0.999), "steps": 300_000,
                  "activation_checkpointing": True, "precision": "bf16_mixed"},
    },
    "megatron_gpt:6.7b-multinode": {
        "processes": 16 * 32,  # reference: #SBATCH --nodes=16, NUM_NEURONCORES
        "layout": TEAMS,
        "model": {**GPT3, **GPT3_VOCABULARY, "init_std": 0.006},  # reference: --init-method-std
        "data": {"sequence": 2048},
        # reference: --global-batch-size --lr --min-lr --lr-warmup-fraction --weight-decay --adam-beta2 TRAIN_ITERS;
        # departs: --lr-decay-iters 123977, after which theirs stays at --min-lr
        "train": {"global_batch": 1024, "micro_batch": 1, "lr": 1.2e-4, "min_lr": 1.2e-5, "schedule": "cosine",
                  "warmup_ratio": 0.00125, "weight_decay": 0.1, "betas": (0.9, 0.95), "steps": 143_051,
                  "activation_checkpointing": True, "precision": "bf16_mixed"},
    },
    "megatron_gpt:small": {
        "processes": 1,
        "layout": {"use": "ddp"},
        # gpt2: 12 layers of 768, 1,024 tokens; the vocabulary made divisible by 64
        "model": {"layers": 12, "hidden": 768, "heads": 12, "positions": 1024, "vocabulary": 50304},
        "data": {"sequence": 1024},
        # gpt2: batch of 512; nanogpt: learning_rate min_lr warmup_iters weight_decay beta2; departs: 100,000 steps
        "train": {"global_batch": 512, "lr": 6e-4, "min_lr": 6e-5, "warmup_steps": 2000, "weight_decay": 0.1,
                  "betas": (0.9, 0.95), "schedule": "cosine"},
    },
    "llama:124m": {
        "processes": 1,
        "layout": {"use": "ddp"},
        # gpt2; SwiGLU: Shazeer (2020), two thirds of the width of an MLP with two matrices
        "model": {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "mlp": 4 * 768 * 2 // 3, "positions": 1024,
                  "vocabulary": 50304, "tied": True},
        "data": {"sequence": 1024},
        "train": {"global_batch": 512, "lr": 6e-4, "min_lr": 6e-5, "warmup_steps": 2000, "weight_decay": 0.1,
                  "betas": (0.9, 0.95), "schedule": "cosine"},  # as megatron_gpt:small
    },
    "llama:360m": {
        "processes": 8,  # departs: 64, which hold copies of the model too
        "layout": {"use": "ddp"},
        # smollm: hidden_size and the like; init_std is 1 / sqrt(hidden)
        "model": {"layers": 32, "hidden": 960, "heads": 15, "kv_heads": 5, "mlp": 2560, "positions": 2048,
                  "vocabulary": 49152, "tied": True, "norm_eps": 1e-5, "rope_theta": 10000.0, "init_std": 0.0323},
        "data": {"sequence": 2048},
        # smollm: micro_batch_size 8 x dp 64, learning_rate, lr_warmup_steps, weight_decay, clip_grad, adam_beta2,
        # min_decay_lr; "trained on 600B tokens", a fifth of the steps to decay
        "train": {"global_batch": 512, "micro_batch": 8, "lr": 3e-3, "min_lr": 0.0, "warmup_steps": 2000,
                  "weight_decay": 0.01, "clip": 1.0, "betas": (0.9, 0.95), "steps": 600_000, "schedule": "wsd"},
    },
    "llama:1b": {
        "processes": 8,
        "layout": {"use": "fsdp"},
        "model": {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "mlp": 8192, "positions": 131_072,
                  "vocabulary": 128_256, "tied": True, "rope_theta": 5e5, "rope_type": "llama3", "rope_factor": 32.0,
                  "rope_original_positions": 8192},  # llama3
        "data": {"sequence": 8192},
        # departs: Llama 3.2 1B was pruned from 8B and distilled; the schedule is that of 8B
        "train": {"global_batch": 512, "lr": 3e-4, "schedule": "cosine", "warmup_steps": 8000, "steps": 1_200_000},
    },
    "llama:8b": {
        "processes": 64,
        "layout": {"use": "fsdp"},
        "model": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "mlp": 14_336, "positions": 8192,
                  "vocabulary": 128_256, "tied": False, "rope_theta": 5e5, "rope_type": "default",
                  "rope_factor": 1.0},  # llama3
        "data": {"sequence": 8192},
        # llama3: the peak of table 3; of 405B, batches of 4 M tokens, 8,000 steps of warm-up, cosine to a hundredth of
        # the peak over 1,200,000 steps
        "train": {"global_batch": 512, "lr": 3e-4, "min_lr": 3e-6, "schedule": "cosine", "warmup_steps": 8000,
                  "steps": 1_200_000},
    },
    "hf_finetune:mrpc": {
        "processes": 1,
        "layout": {"use": "ddp"},
        "model": {"source": "bert-large-uncased"},  # mrpc: model_name_or_path
        "data": {"task": "mrpc", "max_length": 128},  # mrpc: task_name, max_seq_length
        # mrpc: per_device_train_batch_size learning_rate num_train_epochs
        "train": {"batch_per_process": 8, "micro_batch": 8, "lr": 2e-5, "epochs": 5},
    },
}  # fmt: skip
STARTED = ["train.init_from=null"]
"""For variants that demand the weights of phase 1."""


def job_of(name: str) -> Job:
    return resolve(load(), name, STARTED)


def test_no_variant_is_forgotten() -> None:
    registry = load()
    recipes = {name: registry.get("recipe", name) for name in registry.names("recipe")}
    shipped = {f"{name}:{v}" for name, recipe in recipes.items() for v in recipe.variants if v != "tiny"}
    assert shipped - OURS == {*PUBLISHED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_its_numbers_are_the_published_ones(name: str) -> None:
    job, published = job_of(name), PUBLISHED[name]
    assert job.processes == published["processes"]
    assert job.as_dict()["layout"].items() >= published["layout"].items()
    assert asdict(job.train).items() >= published["train"].items()
    assert asdict(job.data.config).items() >= published["data"].items()
    found = job.model.config.sizes if "sizes" in published else job.model.config
    assert asdict(found).items() >= published.get("sizes", published.get("model")).items()


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_says_its_layout_and_processes_itself(name: str) -> None:
    """In its file, or in one that it extends: a change of the recipe's own layout must not change it."""
    recipe, _, variant = name.partition(":")
    found: dict[str, Any] = {}
    variants = load().get("recipe", recipe).variants
    while variant:
        layer = variants[variant]
        found = {**layer, **found}
        variant = layer.get("extends", "")
    assert {"layout", "processes"} <= found.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_its_layout_fits_its_processes(name: str) -> None:
    job = job_of(name)
    train = job.train.for_run(job.processes, 3668)
    assert list(layout_problems(job.layout, job.model, job.facts, train, job.processes)) == []


def test_another_number_of_processes_is_refused_where_the_layout_needs_a_multiple() -> None:
    with pytest.raises(ConfigError, match=r"tp 8 takes a multiple of 8 processes, and this run has 2"):
        checked_job(load(), "bert_tp:large", [], 2)


@pytest.mark.parametrize(("gpus", "said"), [(0, "2 processor cores"), (8, "8 GPUs")])
@pytest.mark.parametrize("line", ["run", "precompile"])
def test_a_machine_without_room_for_them_is_refused_with_the_ways_out(
    line: str, gpus: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpus", lambda: [80_000] * gpus)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert main([line, "bert_tp:large"]) == 2
    assert capsys.readouterr().err == (
        f"recipe {line}: bert_tp:large is made for 32 processes, and this machine has {said}; start it on as many "
        "machines as it takes, by torchrun or srun, or say how many processes to start here: --processes N\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_check_takes_the_number_that_it_is_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recipe_core.train.start.check.parts.free_space", lambda folder: 1 << 50)
    for name, axes in (("bert_tp:large", "dp 4 x tp 8"), ("megatron_gpt:6.7b-multinode", "dp 64 x tp 8")):
        assert main(["check", name]) == 0
        out = capsys.readouterr().out
        said = "this machine cannot hold it; the settings are right"
        assert f"{name} on {job_of(name).processes} processes: {said}" in out
        assert f"layout tp: {axes})" in out
