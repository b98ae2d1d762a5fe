"""XML of S3's answers, and the parts that a request to complete an upload names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, unescape

from recipe_core.testing.objects.bucket import Stored

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_PART = re.compile(r"<Part>.*?</Part>", re.DOTALL)


def error(code: str, message: str) -> bytes:
    """Return the body of an error."""
    return f"{_HEAD}<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()


def listing(
    name: str, prefix: str, found: Sequence[tuple[str, Stored]], folders: Sequence[str], token: str, page: int
) -> bytes:
    """Return one page of ListObjectsV2; ``token`` begins the next one, empty on the last."""
    items = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{escape(stored.etag, {chr(34): '&quot;'})}</ETag><Size>{len(stored.content)}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for key, stored in found
    )
    items += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    return (
        f"{_HEAD}<ListBucketResult {_SPACE}><Name>{name}</Name><Prefix>{escape(prefix)}</Prefix>"
        f"<KeyCount>{len(found) + len(folders)}</KeyCount><MaxKeys>{page}</MaxKeys>"
        f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{more}{items}</ListBucketResult>"
    ).encode()


def begun(bucket: str, key: str, upload: str) -> bytes:
    """Return the answer to CreateMultipartUpload."""
    return (
        f"{_HEAD}<InitiateMultipartUploadResult {_SPACE}><Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
        f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
    ).encode()


def completed(bucket: str, key: str, etag: str) -> bytes:
    """Return the answer to CompleteMultipartUpload."""
    return (
        f"{_HEAD}<CompleteMultipartUploadResult {_SPACE}><Bucket>{bucket}</Bucket><Key>{escape(key)}</Key>"
        f"<ETag>{escape(etag, {chr(34): '&quot;'})}</ETag></CompleteMultipartUploadResult>"
    ).encode()


def deleted(keys: Sequence[str]) -> bytes:
    """Return the answer to DeleteObjects, for keys as the request wrote them."""
    items = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
    return f"{_HEAD}<DeleteResult {_SPACE}>{items}</DeleteResult>".encode()


def unescaped(text: str) -> str:
    """Return the text of an XML element."""
    return unescape(text, {"&quot;": '"', "&apos;": "'"})


def named_parts(body: bytes) -> list[tuple[int, str]]:
    """Return numbers and ETags of the parts in the body of CompleteMultipartUpload."""
    return [(int(_inside("PartNumber", part)), _inside("ETag", part)) for part in _PART.findall(body.decode())]


def _inside(tag: str, text: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return unescaped(found[1]) if found else ""
