"""A trained GPT that is used: ``recipe generate`` and ``recipe eval``.

``generate.py``: prompts and their continuations; read it first. ``decoder.py``: the forward pass with a key-value
cache. ``sampling.py``: from logits to a token. ``evaluate.py``: loss, perplexity and bits per byte. ``score.py``:
logits for the tasks of lm-evaluation-harness. ``tokens.py``: the tokenizer of a checkpoint, and the window that it was
trained with.
"""
