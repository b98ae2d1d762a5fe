"""Words of other tools: each is answered with a setting, a part or an option that the recipe really has."""

from __future__ import annotations

import re

import pytest

from recipe_core.cli.main import cli
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import Recipe
from recipe_core.settings.field_words import WORDS, settings_of, words_for
from recipe_core.settings.job import resolve

REGISTRY = load()
RECIPES = ("bert_dp", "bert_tp", "hf_finetune", "megatron_gpt")
EVERYWHERE = [
    "lr",
    "learning_rate",
    "batch_size",
    "max_grad_norm",
    "gpus",
    "config",
    "processes",
    "fp8",
    "fp16",
    "bf16",
    "wandb",
    "epochs",
    "output_dir",
    "num_layers",
    "gradient_accumulation_steps",
    "warmup_ratio",
    "seq_len",
    "hidden_size",
    "num_attention_heads",
    "resume_from_checkpoint",
    "deepspeed",
    "nproc_per_node",
]


def known(recipe: str, *words: str) -> set[str]:
    found: Recipe = REGISTRY.get("recipe", recipe)
    return settings_of(REGISTRY, resolve(REGISTRY, recipe, words).as_dict(), type(found.train))


def answer(recipe: str, word: str, value: str = "") -> str:
    return words_for(word, value, known(recipe), REGISTRY)


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_answer_names_what_does_not_exist(recipe: str) -> None:
    options = {name for command in ("run", "submit") for one in cli.commands[command].params for name in one.opts}
    has = known(recipe)
    for word in WORDS:
        text = words_for(word, "7", has, REGISTRY)
        written = re.search(r"`(.*?)`", text)
        if written is None:
            assert not text, word
            continue
        pieces = written[1].split()
        layout = [piece for piece in pieces if piece.startswith("layout=")]
        for piece in pieces:
            path, equals, _ = piece.partition("=")
            if equals:
                assert path == "layout" or path in (known(recipe, *layout) if layout else has), (word, text)
            elif piece.startswith("--"):
                assert piece in options, (word, text)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_common_words_have_an_answer_in_every_recipe(recipe: str) -> None:
    has = known(recipe)
    for word in EVERYWHERE:
        text = words_for(word, "7", has, REGISTRY)
        assert text, word
        assert words_for(f"--{word.replace('_', '-')}", "7", has, REGISTRY) == text


@pytest.mark.parametrize(
    ("recipe", "word", "value", "text"),
    [
        ("megatron_gpt", "lr", "1e-3", "write `train.lr=1e-3`"),
        ("megatron_gpt", "--train.lr", "1e-3", "write `train.lr=1e-3`, without dashes"),
        ("megatron_gpt", "seq_len", "64", "write `data.sequence=64`"),
        ("hf_finetune", "seq_len", "64", "write `data.max_length=64`"),
        ("hf_finetune", "epochs", "3", "write `train.epochs=3`"),
        ("megatron_gpt", "epochs", "3", "write `train.steps=N` (training is counted in steps)"),
        ("hf_finetune", "per_device_train_batch_size", "4", "write `train.batch_per_process=4`"),
        ("megatron_gpt", "max_grad_norm", "1", "write `train.clip=1`"),
        ("megatron_gpt", "tp", "2", "write `layout=tp layout.tp=2`"),
        ("megatron_gpt", "vocabulary", "9", "write `data.vocabulary=9` or `model.vocabulary=9`"),
        ("megatron_gpt", "seed", "", "write `train.seed=N`"),
        ("megatron_gpt", "frobnicate", "9", ""),
    ],
)
def test_answers(recipe: str, word: str, value: str, text: str) -> None:
    assert answer(recipe, word, value) == text


def test_a_recipe_without_the_setting_gets_no_answer() -> None:
    assert words_for("num_layers", "2", {"train.lr"}, REGISTRY) == ""
