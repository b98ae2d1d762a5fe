"""Errors of object storage: what kind they are, and their messages."""

from __future__ import annotations

import os
import re
from typing import ClassVar, Literal

from recipe_core.errors import DataError, ExitCode

Kind = Literal[
    "missing", "bucket", "denied", "credentials", "changed", "exists", "short", "busy", "timeout", "unreachable",
    "other",
]  # fmt: skip
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_HTTP = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode|Unknown)")
_LOGIN = ("169.254.169.254", "/computeMetadata/", "token request", "MissingAccount", "Account must be specified")
"""In errors of the search for credentials."""
_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS to a file of credentials, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}


class ObjectError(DataError):
    """An object or a bucket cannot be read or written."""


class ObjectMissingError(ObjectError):
    """There is no such object."""


class ObjectChangedError(ObjectError):
    """An object is no longer the one that was opened."""


class ObjectExistsError(ObjectError):
    """There is an object already where one was to be created."""


class ObjectUnavailableError(ObjectError):
    """The storage did not answer within the bounds of all repetitions; the same command may work later."""

    exit_code: ClassVar[int] = ExitCode.STOPPED


class ShortBodyError(Exception):
    """A body is shorter than the range that was asked for."""


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an error of obstore; a repetition may help after ``busy``, ``timeout`` and ``short``."""
    text, name = str(error), type(error).__name__
    status, code, http = (pattern.search(text) for pattern in (_STATUS, _CODE, _HTTP))
    if isinstance(error, ShortBodyError):
        return "short"
    if any(word in text for word in _LOGIN):
        return "credentials"
    if code and code[1] in ("NoSuchBucket", "ContainerNotFound"):
        return "bucket"
    if isinstance(error, FileNotFoundError):
        return "missing"
    named: dict[str, Kind] = {
        "PermissionDeniedError": "denied",
        "UnauthenticatedError": "denied",
        "PreconditionError": "changed",
        "AlreadyExistsError": "exists",
    }
    if name in named:
        return named[name]
    if status:
        return _of_status(int(status[1]))
    if http:
        named_http: dict[str, Kind] = {"Connect": "unreachable", "Timeout": "timeout"}
        return named_http.get(http[1], "busy")
    return "other"


def _of_status(status: int) -> Kind:
    if status in (401, 403):
        return "denied"
    return "busy" if status >= 500 or status in (408, 409, 429) else "other"


def explained(kind: Kind, scheme: str, bucket: str, address: str, error: BaseException, tried: str = "") -> ObjectError:
    """Return our error for one of obstore.

    Args:
        kind: of ``error``.
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: its name.
        address: of the object.
        error: the last one.
        tried: how often and how long, if the request was repeated.
    """
    endpoint = os.environ.get(_ENDPOINTS[scheme]) or f"the default endpoint of {scheme}://"
    where = f"{_ENDPOINTS[scheme]} and the network; {endpoint} was used"
    short = _short(error)
    if kind == "missing":
        return ObjectMissingError(f"{address}: not found; expected an object; check the address, or copy the object")
    if kind == "bucket":
        return ObjectError(
            f"{address}: there is no bucket {bucket!r} at {endpoint}; check its name, or set {_ENDPOINTS[scheme]}"
        )
    if kind == "credentials":
        return ObjectError(f"{address}: no credentials were found; set {_CREDENTIALS[scheme]}")
    if kind == "denied":
        return ObjectError(
            f"{address}: access was denied ({short}); check the credentials ({_CREDENTIALS[scheme]}), or ask the owner "
            "of the bucket for the right"
        )
    if kind == "changed":
        return ObjectChangedError(
            f"{address}: has changed since it was opened: its ETag is another; keep objects as they are while a run "
            "reads them, and start the run again"
        )
    if kind == "exists":
        return ObjectExistsError(f"{address}: there is an object already; delete it, or choose another address")
    if kind == "unreachable":
        return ObjectError(f"{address}: the storage cannot be reached ({short}{tried}); check {where}")
    if kind in ("busy", "short", "timeout"):
        return ObjectUnavailableError(
            f"{address}: the storage did not deliver it ({short}{tried}); run the same command again later, or check "
            f"{where}"
        )
    return ObjectError(f"{address}: the storage refused the request ({short}); check the address, and {where}")


def _short(error: BaseException) -> str:
    # the status and the code of an answer, or the first line
    text = str(error)
    status, code, http = (pattern.search(text) for pattern in (_STATUS, _CODE, _HTTP))
    found = [*([status[1]] if status else []), *([code[1]] if code else [])]
    if not found and http:
        return {"Connect": "no connection", "Timeout": "no answer in time", "Interrupted": "a cut body"}.get(
            http[1], text.splitlines()[0]
        )
    return " ".join(found) or text.splitlines()[0][:200]
