"""The dataset ``gpt_indexed``.

``samples.py``: batches; read it first. ``order.py``, ``packed.py``, ``blend.py``: the order of samples, cut or packed,
and their choice among files. ``sources.py``: the files of a run, their weights, phases and splits. ``header.py``,
``indexed.py``: Megatron's .bin and .idx files. ``facts.py``: facts from the headers, before a run. ``identity.py``:
digests of the files. ``corpus.py``: the embedded corpus. ``inspect.py``: ``recipe inspect`` and ``recipe verify``.
``documents.py``: documents for ``recipe eval``. ``arrays/``: the indices of a run. ``remote/``: token files in object
storage.
"""
