"""Use of a trained causal language model: what ``recipe generate`` and ``recipe eval`` call for models that name it.

``generate.py``: prompts and their continuations; read it first. ``decoder.py``: next-token logits of a growing text.
``sampling.py``: sampling of tokens. ``evaluate.py``: loss, perplexity and bits per byte. ``score.py``: logits for the
tasks of lm-evaluation-harness. ``text.py``: the tokenizer of a checkpoint, and the window of its training;
``tokenizer.py``: file formats of tokenizers.
"""
