"""The nodes of a job before a run: one process on each, which compare what they see.

``meeting.py``: rendezvous and exchange of values; ``links.py``: speed of the links; ``devices.py``: the devices of a
node. ``recipe check --on-nodes`` compares the values and prints the table.
"""
