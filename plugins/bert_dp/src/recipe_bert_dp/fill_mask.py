"""``recipe generate`` with a BERT: the most likely tokens for each [MASK]."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from recipe_core import ConfigError, DataError, Generation, TrainedModel
from recipe_core.data.identity import lowercases
from recipe_core.files.documents import DocumentError, read_text

MASK = "[MASK]"
TOP_K = 5
_REQUIRED = ("[UNK]", "[CLS]", "[SEP]", MASK)
_VOCABULARY, _SETTINGS = "vocab.txt", "tokenizer_config.json"


def generate(trained: TrainedModel, options: Generation) -> Callable[[str], dict[str, Any]]:
    """Return a function that fills the masks of a text; see :attr:`recipe_core.Model.generate`.

    Its answers have ``text``, with the most likely token for each mask, and ``masks``: for each, the ``top_k`` most
    likely tokens with their probabilities.

    Raises:
        ConfigError: no vocabulary is known, or it does not fit the model.
        CheckpointError: the weights cannot be read.
    """
    options.require_only(trained.model.spec.name, "top_k", "tokenizer")
    sizes = trained.model.config.sizes
    tokenizer = _tokenizer(trained, options.tokenizer, options.accept)
    if (size := tokenizer.get_vocab_size()) > sizes.vocabulary:
        raise ConfigError(
            f"{trained.path}: its vocabulary has {size:,} tokens, and the model {sizes.vocabulary:,}; name the one "
            "that it was trained with: --tokenizer PATH"
        )
    count, module = min(options.top_k or TOP_K, size), trained.module

    def answer(prompt: str) -> dict[str, Any]:
        ids = tokenizer.encode(prompt).ids
        places = [place for place, number in enumerate(ids) if number == tokenizer.token_to_id(MASK)]
        if not places:
            raise ConfigError(f"the prompt {prompt!r:.60} has no {MASK}, which this model fills")
        if len(ids) > sizes.positions:
            raise ConfigError(
                f"the prompt {prompt!r:.60} has {len(ids):,} tokens, and the model {sizes.positions:,} positions"
            )
        probabilities = _probabilities(module, ids, places)[:, :size]
        best = [
            [{"token": tokenizer.id_to_token(int(n)), "probability": float(p)} for p, n in zip(*row, strict=True)]
            for row in zip(*probabilities.topk(count), strict=True)
        ]
        text = _filled(prompt, [str(row[0]["token"]) for row in best])
        return {"shown": "\n".join([text, *map(_line, best)]), "text": text, "masks": best}

    return answer


@torch.inference_mode()
def _probabilities(module: Any, ids: list[int], places: list[int]) -> torch.Tensor:
    # fp32 [masks, vocabulary] on the CPU.
    device = module.cls.predictions.bias.device
    tokens = torch.tensor([ids], device=device)
    batch = {
        "input_ids": tokens, "input_mask": torch.ones_like(tokens), "segment_ids": torch.zeros_like(tokens),
        "masked_lm_positions": torch.tensor([places], device=device),
    }  # fmt: skip
    probabilities: torch.Tensor = module.masked_logits(batch)[0].float().softmax(-1).cpu()
    return probabilities


def _filled(prompt: str, tokens: list[str]) -> str:
    # A token that continues a word replaces the space before its mask too.
    remaining = iter(tokens)

    def replacement(match: re.Match[str]) -> str:
        token = next(remaining)
        return token.removeprefix("##") if token.startswith("##") else match[1] + token

    return re.sub(r"(\s*)\[MASK\]", replacement, prompt)


def _line(row: list[dict[str, Any]]) -> str:
    return "  " + "  ".join(f"{entry['token']} {entry['probability']:.1%}" for entry in row)


def _tokenizer(trained: TrainedModel, path: Path | None, accept: str | None) -> Any:
    from tokenizers import BertWordPieceTokenizer

    texts = trained.tokenizer() if path is None else _read(path)
    if path is not None:
        trained.require_tokenizer(texts, f"--tokenizer {path}", accept)
    elif reason := trained.provenance.missing_tokenizer():
        raise ConfigError(f"{trained.path}: {reason}; give it: --tokenizer PATH")
    if _VOCABULARY not in texts:
        raise ConfigError(
            f"{trained.path}: no vocabulary is known: no {_VOCABULARY} lies beside its tensors, nor where its data "
            "were; name it: --tokenizer PATH"
        )
    pieces = {piece: number for number, piece in enumerate(texts[_VOCABULARY].splitlines())}
    if missing := [token for token in _REQUIRED if token not in pieces]:
        raise ConfigError(f"--tokenizer: {path or _VOCABULARY}: lacks {', '.join(missing)}; name BERT's {_VOCABULARY}")
    return BertWordPieceTokenizer(pieces, lowercase=lowercases(texts))


def _read(path: Path) -> dict[str, str]:
    folder, vocabulary = (path, path / _VOCABULARY) if path.is_dir() else (path.parent, path)
    files = {_VOCABULARY: vocabulary, _SETTINGS: folder / _SETTINGS}
    try:
        return {name: read_text(file) for name, file in files.items() if name == _VOCABULARY or file.is_file()}
    except (OSError, DocumentError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"--tokenizer: {vocabulary}: cannot be read ({reason}); name BERT's {_VOCABULARY}") from error
