"""Clients of object storage, one for each bucket and process."""

from __future__ import annotations

import os
from configparser import ConfigParser
from configparser import Error as ParserError
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from recipe_core.errors import ConfigError
from recipe_core.files.objects.retries import SECONDS, TRIES

_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "HOME")
_TIMEOUTS = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
"""Of one request: until it is connected, and until its body is complete."""
_OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE",
)  # fmt: skip
_PROFILE = {
    "aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key", "aws_session_token": "token",
}  # fmt: skip


def client(scheme: str, bucket: str, *, repeats: bool = False) -> Any:
    """Return obstore's client of a bucket, by the environment's variables.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: its name; for ``az``, that of the container.
        repeats: let it repeat its requests itself, for those that consist of several.

    Raises:
        ConfigError: obstore is not installed, or a variable cannot be used.
    """
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES)))
    return _client(scheme, bucket, repeats, os.getpid(), variables)


@lru_cache(maxsize=64)
def _client(scheme: str, bucket: str, repeats: bool, process: int, variables: tuple[tuple[str, str], ...]) -> Any:
    del process  # its threads are not those of a parent
    try:
        from obstore import exceptions, store
    except ImportError as error:
        raise ConfigError(
            f"{scheme}://{bucket}: object storage needs the package obstore, which is not installed; "
            "pip install 'recipe-core[s3]'"
        ) from error
    options: dict[str, Any] = {**_TIMEOUTS, **_plain_http(dict(variables))}
    retries = {"max_retries": TRIES if repeats else 0, "retry_timeout": timedelta(seconds=SECONDS)}
    common: dict[str, Any] = {"client_options": options, "retry_config": retries}
    try:
        if scheme == "s3":
            return store.S3Store(bucket, **_keys(dict(variables)), **common)
        return {"gs": store.GCSStore, "az": store.AzureStore}[scheme](bucket, **common)
    except (exceptions.BaseError, ValueError) as error:
        if "MissingAccount" in str(error):
            raise ConfigError(f"az://{bucket}: set AZURE_STORAGE_ACCOUNT_NAME to its account") from error
        raise ConfigError(
            f"{scheme}://{bucket}: the client cannot be made ({str(error).splitlines()[0]}); check the variables "
            "of the environment that begin with AWS_, GOOGLE_ or AZURE_"
        ) from error


def _plain_http(variables: dict[str, str]) -> dict[str, bool]:
    # An endpoint without TLS, such as MinIO's on a private network, is what the user named.
    plain = False
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"):
        if not (value := variables.get(name)):
            continue
        if (parts := urlsplit(value)).scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{name}: expected http://HOST:PORT or https://HOST, got {value!r}")
        plain |= parts.scheme == "http"
    return {"allow_http": True} if plain else {}


def _keys(variables: dict[str, str]) -> dict[str, str]:
    # the keys of AWS_PROFILE in the file that the AWS command line writes, which obstore does not read
    if any(variables.get(name) for name in _OTHER_CREDENTIALS):
        return {}
    file = variables.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    parser, profile = ConfigParser(interpolation=None), variables.get("AWS_PROFILE", "default")
    try:
        parser.read(Path(file).expanduser(), encoding="utf-8")
    except (OSError, ParserError, UnicodeError, RuntimeError) as error:
        raise ConfigError(f"{file}: the credentials cannot be read ({error}); write the file again") from error
    if not parser.has_section(profile):
        return {}
    return {ours: parser[profile][name] for name, ours in _PROFILE.items() if name in parser[profile]}
