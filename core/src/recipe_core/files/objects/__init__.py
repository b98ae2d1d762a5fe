"""Objects in buckets: ``s3://bucket/key`` (also of MinIO, through ``AWS_ENDPOINT_URL``), ``gs://`` and ``az://``.

``address.py``: addresses, and what can be done with an object; read it first. ``ranges.py``: which byte ranges to ask
for. ``reading.py``: an object that is read as a file. ``transfers.py``: files to objects and back. ``copies.py``:
copies of small objects. ``patterns.py``: patterns in keys. ``retries.py``: repetitions, within bounds.
``failures.py``: errors and their messages. ``store.py``: clients of ``obstore``; both are only imported when an object
is touched.
"""

from __future__ import annotations

from recipe_core.files.objects.address import ObjectPath, ObjectStat, is_address
from recipe_core.files.objects.failures import (
    ObjectChangedError,
    ObjectError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectUnavailableError,
)

__all__ = [
    "ObjectChangedError",
    "ObjectError",
    "ObjectExistsError",
    "ObjectMissingError",
    "ObjectPath",
    "ObjectStat",
    "ObjectUnavailableError",
    "is_address",
]
