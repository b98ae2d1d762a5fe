"""The dataset ``gpt_indexed``.

``samples.py``: batches; read it first. ``order.py``, ``blend.py``: which sample comes when, and from which file.
``indexed.py``, ``header.py``: Megatron's .bin/.idx files; ``sources.py``: which files a run reads; ``arrays.py``:
indices
in the cache. ``facts.py``: known from the headers alone. ``corpus.py``: the embedded corpus; ``inspect.py``: ``recipe
inspect`` and ``verify``.
"""
