"""Use of a trained GPT: ``recipe generate`` and ``recipe eval``.

``generate.py``: prompts and their continuations; read it first. ``decoder.py``: the forward pass with a key-value
cache. ``sampling.py``: sampling of tokens. ``evaluate.py``: loss, perplexity and bits per byte. ``score.py``: logits
for the tasks of lm-evaluation-harness. ``tokens.py``: the tokenizer of a checkpoint, and the window of its training.
"""
