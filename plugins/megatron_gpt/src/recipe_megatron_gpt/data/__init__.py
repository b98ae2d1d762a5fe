"""The dataset ``gpt_indexed``.

``samples.py``: batches; read it first. ``order.py``, ``blend.py``: which sample comes when, and from which file.
``sources.py``: the files of a run, their weights and splits. ``header.py``, ``indexed.py``: Megatron's .bin/.idx
files. ``arrays.py``: indices in the cache. ``mapped.py``: memory maps. ``facts.py``: what the headers tell before a
run. ``identity.py``: digests of the files. ``corpus.py``: the embedded corpus. ``inspect.py``: ``recipe inspect`` and
``recipe verify``.
"""
