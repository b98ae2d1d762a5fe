"""Gradients over ranks.

``reducer.py``: averages, overlapped with the backward pass. ``gradients.py``: norm and clipping.
"""
