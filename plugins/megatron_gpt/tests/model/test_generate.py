"""Sampling, and the text at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recipe_core.checkpoint.inference.sampling import sample
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run
from recipe_megatron_gpt import generate
from recipe_megatron_gpt.generate import closing
from recipe_megatron_gpt.model.gpt import build
from recipe_megatron_gpt.settings import Gpt, GptIndexed
from recipe_megatron_gpt.tokenizer import text

CONFIG = Gpt(layers=1, hidden=32, heads=2, positions=8, vocabulary=300, dropout=0.5, attention_dropout=0.5)


class Counting(nn.Module):
    """Says that the token after ``n`` is ``n + 1`` (modulo 10), nearly for sure; remembers what it saw."""

    def __init__(self, certainty: float = 50.0) -> None:
        super().__init__()
        self.certainty = certainty
        self.seen: list[tuple[list[int], bool]] = []

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        self.seen.append((batch["tokens"][0].tolist(), self.training))
        return self.certainty * nn.functional.one_hot((batch["tokens"] + 1) % 10, 10).float()


def test_it_continues_every_row_within_the_window() -> None:
    module = Counting()
    tokens = sample(module, torch.tensor([[1, 2, 3], [7, 8, 9]]), 5, 4)
    assert tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [7, 8, 9, 0, 1, 2, 3, 4]]
    assert module.seen == [([1, 2, 3], False), *(([n, n + 1, n + 2, n + 3], False) for n in (1, 2, 3, 4))]
    assert module.training


def test_the_likeliest_token_at_temperature_zero_or_among_one() -> None:
    module, start = Counting(certainty=0.01), torch.tensor([[5]])
    assert sample(module, start, 3, 4, temperature=0).tolist() == [[5, 6, 7, 8]]
    assert sample(module, start, 3, 4, top_k=1).tolist() == [[5, 6, 7, 8]]


def test_temperature_and_top_k_shape_what_is_drawn() -> None:
    start = torch.tensor([[5]] * 4000)

    def share(certainty: float, **settings: Any) -> Tensor:
        drawn = sample(
            Counting(certainty=certainty), start, 1, 4, generator=torch.Generator().manual_seed(0), **settings
        )
        return drawn[:, 1].bincount(minlength=10) / len(start)

    # e / (e + 9) of the draws follow a logit of 1 among nine of 0; half the temperature makes it 2.
    assert share(1.0)[6].item() == pytest.approx(0.232, abs=0.03)
    assert share(1.0, temperature=0.5)[6].item() == pytest.approx(0.451, abs=0.03)
    assert (share(1.0, top_k=3) > 0).sum() == 3


def test_a_model_and_a_generator_give_the_same_text_each_time() -> None:
    module, start = build(CONFIG)[0], torch.tensor([[1, 2, 3]])
    first, again, other = (
        sample(module, start, 12, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (1, 15)


def test_training_is_taken_up_again_after_an_error() -> None:
    module = build(CONFIG)[0]
    with pytest.raises(IndexError):
        sample(module, torch.tensor([[300]]), 1, 8)
    assert module.training


def job_of(data: object) -> Any:
    return SimpleNamespace(data=SimpleNamespace(config=data), train=Train())


def test_closing_gives_text(run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tokenizer whose tokens are the characters of Latin-1."""
    monkeypatch.setattr(text, "encode", lambda config, words, cache: [ord(letter) for letter in words])
    monkeypatch.setattr(text, "decode", lambda config, ids, cache: "".join(map(chr, ids)))
    module = build(CONFIG)[0]
    result = closing(module, job_of(GptIndexed()), run_of())
    assert result["sample"].startswith(generate.PROMPT)
    assert len(result["sample"]) == len(generate.PROMPT) + generate.TOKENS
    assert result == closing(module, job_of(GptIndexed()), run_of())


def test_closing_begins_with_the_validation_text_of_files(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "load", lambda config, cache: object())
    monkeypatch.setattr(text, "decode", lambda config, ids, cache: ids)
    files = (write_tokens([30, 20, 4]),)
    module = build(CONFIG)[0]
    for split, prompt in (("2,1,0", [50, 51, 52, 53]), ("1,2,0", list(range(30, 38))), ("1,0,0", list(range(8)))):
        shares = tuple(map(float, split.split(",")))
        found = closing(module, job_of(GptIndexed(files=files, split=shares)), run_of())["sample"]
        assert (found[: len(prompt)], len(found)) == (prompt, len(prompt) + generate.TOKENS)


def test_closing_without_a_tokenizer(
    run_of: Callable[..., Run], write_tokens: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(CONFIG)[0]
    files = (write_tokens([5, 5]),)
    assert closing(module, job_of(GptIndexed(files=files)), run_of()) == {}
    assert closing(module, job_of(object()), run_of()) == {}
    broken = closing(module, job_of(GptIndexed(files=files, tokenizer="nowhere.json")), run_of())
    assert list(broken) == ["sample_error"]
    assert "nowhere.json" in broken["sample_error"]
