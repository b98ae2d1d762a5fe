"""The tokenizer of a data set, as files for Hugging Face's AutoTokenizer."""

from __future__ import annotations

import json

from recipe_core import DataError
from recipe_core.checkpoint.inference.tokenizer import known_end, read_tokenizer
from recipe_core.files import home
from recipe_core.files.documents import DocumentError, read_text
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.settings import GptIndexed
from recipe_megatron_gpt.tokenizer import text


def files(config: GptIndexed) -> dict[str, str]:
    """``tokenizer.json`` of the token files, and ``tokenizer_config.json``; empty if they have none.

    Raises:
        RecipeError: it cannot be read.
    """
    path = text.tokenizer_file(config)
    if path is None and not config.files:
        path = corpus.prepare(home(), config.vocabulary).with_name(corpus.TOKENIZER)
    if path is None:
        return {}
    tokenizer = read_tokenizer(path)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if end := known_end(tokenizer):
        settings |= {"bos_token": end, "eos_token": end}
    try:
        content = read_text(path)
    except (OSError, DocumentError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return {"tokenizer.json": content, "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}
