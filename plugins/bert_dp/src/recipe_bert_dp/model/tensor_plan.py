"""The tensor-parallel plan of BERT. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from recipe_bert_dp.settings import BertPretraining


def plan(config: BertPretraining) -> Mapping[str, str]:
    """Shard attention by heads, the linear layers by their inner width, and the vocabulary.

    The decoder is tied to the word embedding, and its bias is sharded like it. The heads read the whole sequence.
    """
    embeddings, block = "bert.embeddings", "bert.encoder.layer.*"
    attention = f"{block}.attention"
    return {
        f"{embeddings}.word_embeddings": "vocabulary_in",
        f"{embeddings}.position_embeddings": "sequence",
        f"{embeddings}.token_type_embeddings": "sequence",
        f"{embeddings}.LayerNorm": "sequence",
        f"{attention}.self": "split",
        f"{attention}.self.query": "column",
        f"{attention}.self.key": "column",
        f"{attention}.self.value": "column",
        f"{attention}.output.dense": "row",
        f"{attention}.output.LayerNorm": "sequence",
        f"{block}.intermediate.dense": "column",
        f"{block}.output.dense": "row",
        f"{block}.output.LayerNorm": "sequence",
        "encoded": "replicated",
        "bert.pooler": "whole",
        "cls.predictions.transform": "whole",
        "cls.predictions.decoder": "vocabulary_out",
        "cls.seq_relationship": "whole",
    }
