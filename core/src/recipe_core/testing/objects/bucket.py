"""Objects and multipart uploads of one bucket, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import md5
from itertools import count

SMALLEST_PART = 5 << 20
"""Bytes of each part of a multipart upload but the last, as S3 requires."""


@dataclass(frozen=True)
class Stored:
    """The bytes of an object, and its ETag with the quotation marks that belong to it."""

    content: bytes
    etag: str


def etag_of(content: bytes) -> str:
    """Return the ETag of an object that was written whole."""
    return f'"{md5(content, usedforsecurity=False).hexdigest()}"'


@dataclass
class Bucket:
    """One bucket; the server locks it."""

    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    """Key and parts of each open multipart upload."""
    numbers: count[int] = field(default_factory=count)

    def put(self, key: str, content: bytes) -> str:
        """Store an object whole; return its ETag."""
        self.objects[key] = Stored(content, etag_of(content))
        return self.objects[key].etag

    def begin(self, key: str) -> str:
        """Open a multipart upload; return its id."""
        upload = f"upload-{next(self.numbers)}"
        self.uploads[upload] = (key, {})
        return upload

    def add_part(self, upload: str, number: int, content: bytes) -> str:
        """Store one part; return its ETag."""
        self.uploads[upload][1][number] = content
        return etag_of(content)

    def complete(self, upload: str, parts: list[tuple[int, str]]) -> str:
        """Make the object of an upload from its parts, numbers and ETags; return its ETag.

        Raises:
            ValueError: a part is missing, has another ETag or is too small, or they are out of order; with S3's code.
        """
        key, stored = self.uploads[upload]
        numbers = [number for number, _ in parts]
        if not parts or any(number not in stored or etag_of(stored[number]) != etag for number, etag in parts):
            raise ValueError("InvalidPart")
        if numbers != sorted(set(numbers)):
            raise ValueError("InvalidPartOrder")
        contents = [stored[number] for number in numbers]
        if any(len(content) < SMALLEST_PART for content in contents[:-1]):
            raise ValueError("EntityTooSmall")
        digests = b"".join(md5(content, usedforsecurity=False).digest() for content in contents)
        etag = f'"{md5(digests, usedforsecurity=False).hexdigest()}-{len(contents)}"'
        self.objects[key] = Stored(b"".join(contents), etag)
        del self.uploads[upload]
        return etag
