"""The samples of a run: a dataset, checked, with its data wrappers around it; and datasets made of others.

Read :mod:`build` first; :mod:`wrapping` is what a plugin's wrapper gets, :mod:`filtering` and :mod:`mapping` are what
it makes of a function. :mod:`mixture` and :mod:`counted` are the core's own dataset and wrapper.
"""
