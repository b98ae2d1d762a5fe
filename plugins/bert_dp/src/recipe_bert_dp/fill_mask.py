"""``recipe generate`` with a BERT: the likeliest tokens in the place of each [MASK]."""

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
_NEEDED = ("[UNK]", "[CLS]", "[SEP]", MASK)
_VOCABULARY, _SETTINGS = "vocab.txt", "tokenizer_config.json"


def generate(trained: TrainedModel, options: Generation) -> Callable[[str], dict[str, Any]]:
    """A function that fills the masks of a text; see :attr:`recipe_core.Model.generate`.

    Its answers have ``text``, with the likeliest token in each place, and ``masks``: for each the ``top_k`` likeliest
    tokens with their probabilities.

    Raises:
        ConfigError: no vocabulary is known, or it is not the model's.
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
        shares = _probabilities(module, ids, places)[:, :size]
        best = [
            [{"token": tokenizer.id_to_token(int(n)), "probability": float(p)} for p, n in zip(*row, strict=True)]
            for row in zip(*shares.topk(count), strict=True)
        ]
        text = _filled(prompt, [str(row[0]["token"]) for row in best])
        return {"shown": "\n".join([text, *map(_line, best)]), "text": text, "masks": best}

    return answer


@torch.inference_mode()
def _probabilities(module: Any, ids: list[int], places: list[int]) -> torch.Tensor:
    """``[masks, vocabulary]``, fp32 on the CPU."""
    device = module.cls.predictions.bias.device
    tokens = torch.tensor([ids], device=device)
    batch = {
        "input_ids": tokens, "input_mask": torch.ones_like(tokens), "segment_ids": torch.zeros_like(tokens),
        "masked_lm_positions": torch.tensor([places], device=device),
    }  # fmt: skip
    shares: torch.Tensor = module.masked_logits(batch)[0].float().softmax(-1).cpu()
    return shares


def _filled(prompt: str, tokens: list[str]) -> str:
    """``prompt`` with a token in each mask; one that continues a word loses the space before it."""
    left = iter(tokens)

    def put(match: re.Match[str]) -> str:
        token = next(left)
        return token.removeprefix("##") if token.startswith("##") else match[1] + token

    return re.sub(r"(\s*)\[MASK\]", put, prompt)


def _line(row: list[dict[str, Any]]) -> str:
    return "  " + "  ".join(f"{one['token']} {one['probability']:.1%}" for one in row)


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
    if missing := [token for token in _NEEDED if token not in pieces]:
        raise ConfigError(f"--tokenizer: {path or _VOCABULARY}: lacks {', '.join(missing)}; name BERT's {_VOCABULARY}")
    return BertWordPieceTokenizer(pieces, lowercase=lowercases(texts))


def _read(path: Path) -> dict[str, str]:
    """The texts of a vocab.txt, or of the folder that holds one."""
    folder, vocabulary = (path, path / _VOCABULARY) if path.is_dir() else (path.parent, path)
    files = {_VOCABULARY: vocabulary, _SETTINGS: folder / _SETTINGS}
    try:
        return {name: read_text(file) for name, file in files.items() if name == _VOCABULARY or file.is_file()}
    except (OSError, DocumentError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"--tokenizer: {vocabulary}: cannot be read ({reason}); name BERT's {_VOCABULARY}") from error
