"""How the workspace is checked: what the sessions of noxfile.py have in common.

Read ``workspace`` first: the distributions and what they declare. ``environment`` fills the environment of a session
with exactly that, ``attempts`` runs its tests, ``changes`` finds what differs from the last commit that landed,
``summary`` prints what failed at the end, ``versions`` keeps constraints.txt complete, ``language`` reads docstrings,
comments and pages for plain English, and ``distributions`` makes and installs what users get. Nothing here is installed
itself.
"""
