"""The nodes of a job before a run is started on them: one process on each, which compare what they see.

``meeting.py``: they come together, and tell each other; ``links.py``: how fast each reaches the next; ``devices.py``:
the devices of one. What is compared, and the table, are ``recipe check --on-nodes``'s.
"""
