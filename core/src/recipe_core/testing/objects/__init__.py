"""A server of object storage on this machine, for tests: S3's protocol as far as recipe uses it.

``server.py``: the server; read it first. ``bucket.py``: objects and multipart uploads in memory. ``faults.py``: errors,
cut bodies and delays, drawn from a seed. ``answers.py``: the XML of its answers.
"""

from __future__ import annotations

from recipe_core.testing.objects.faults import Faults
from recipe_core.testing.objects.server import ObjectServer, reach_objects, serve_objects

__all__ = ["Faults", "ObjectServer", "reach_objects", "serve_objects"]
