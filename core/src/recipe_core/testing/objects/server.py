"""The server: buckets under ``http://127.0.0.1:PORT/BUCKET/KEY``, a thread for each connection."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from recipe_core.files.objects import retries
from recipe_core.testing.objects import answers
from recipe_core.testing.objects.bucket import Bucket
from recipe_core.testing.objects.faults import Faults

if TYPE_CHECKING:
    import pytest

KEY = "test-key"
SECRET = "test-secret"
_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


class ObjectServer(ThreadingHTTPServer):
    """Buckets in memory, with what a test asks about them.

    Only requests that are signed with :data:`KEY` are served; the signature itself is not checked.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, buckets: tuple[str, ...] = ("bucket",), page: int = 1000) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page = page
        """Objects in one page of a listing."""
        self.buckets = {name: Bucket() for name in buckets}
        self.faults = Faults()
        self.lock = threading.RLock()
        self.served: Counter[str] = Counter()
        """Bytes of objects that were sent, by ``bucket/key``; also of bodies that were cut."""
        self.requests: list[str] = []
        """Method and path of each request, in order, with the range that it asked for."""

    @property
    def endpoint(self) -> str:
        """The address for ``AWS_ENDPOINT_URL``."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a client needs."""
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": self.endpoint, **keys}

    @property
    def open_uploads(self) -> int:
        """Number of multipart uploads that were neither completed nor aborted."""
        with self.lock:
            return sum(len(bucket.uploads) for bucket in self.buckets.values())

    def put(self, key: str, content: bytes, bucket: str = "bucket") -> None:
        """Store an object."""
        with self.lock:
            self.buckets[bucket].put(key, content)

    def content(self, key: str, bucket: str = "bucket") -> bytes:
        """Return the bytes of an object."""
        with self.lock:
            return self.buckets[bucket].objects[key].content

    def keys(self, bucket: str = "bucket") -> list[str]:
        """Return the keys of all objects, in order."""
        with self.lock:
            return sorted(self.buckets[bucket].objects)

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent about clients that went away."""


@contextmanager
def serve_objects(buckets: tuple[str, ...] = ("bucket",), page: int = 1000) -> Iterator[ObjectServer]:
    """Serve ``buckets``, empty at first, until the block ends."""
    server = ObjectServer(buckets, page)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def reach_objects(monkeypatch: pytest.MonkeyPatch, page: int = 1000) -> Iterator[ObjectServer]:
    """Serve a bucket as :func:`serve_objects`; this process reaches it, and repeats requests almost at once."""
    with serve_objects(page=page) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(retries, "_WAIT", 0.001)
        monkeypatch.setattr(retries, "_answered", set())
        monkeypatch.setattr(retries, "_unreachable", set())
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ObjectServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _serve(self) -> None:
        address = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        name, _, self.key = unquote(address.path).lstrip("/").partition("/")
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        line = f"{self.command} {self.path} {self.headers.get('Range', '')}".strip()
        with self.server.lock:
            self.server.requests.append(line)
        self.fault = self.server.faults.draw(line)
        if self.fault == "delay":
            time.sleep(self.server.faults.seconds)
        if self.fault in ("refuse", "fail"):
            status, code = (503, "SlowDown") if self.fault == "refuse" else (500, "InternalError")
            self._fail(status, code, "an injected fault")
        elif f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
            self._fail(403, "AccessDenied", "Access Denied")
        elif name not in self.server.buckets:
            self._fail(404, "NoSuchBucket", f"The specified bucket does not exist: {name}")
        else:
            self.name, self.bucket = name, self.server.buckets[name]
            with self.server.lock:
                answer = self._answer()
            self._send(*answer)

    def _answer(self) -> tuple[int, bytes, dict[str, str]]:
        method = self.command if self.key else f"{self.command} bucket"
        if method == "POST bucket" and "delete" in self.query:
            return self._delete_many()
        if method == "GET bucket":
            return self._list()
        if method in ("GET", "HEAD"):
            return self._get()
        if method == "PUT":
            return self._put()
        if method == "POST":
            return self._multipart()
        if method == "DELETE":
            if "uploadId" in self.query:
                self.bucket.uploads.pop(self.query["uploadId"], None)
            else:
                self.bucket.objects.pop(self.key, None)
            return 204, b"", {}
        return self._error(405, "MethodNotAllowed", method)

    def _list(self) -> tuple[int, bytes, dict[str, str]]:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after = max(self.query.get("start-after", ""), self.query.get("continuation-token", ""))
        entries: dict[str, str] = {}  # of a page: a key, or the prefix of several, and its last key
        for key in sorted(self.bucket.objects):
            if key.startswith(prefix) and key > after:
                head, deeper, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
                entries[prefix + head + delimiter if deeper else key] = key
        page = min(self.server.page, int(self.query.get("max-keys", self.server.page)))
        shown = list(entries)[:page]
        token = entries[shown[-1]] if len(entries) > page else ""
        found = [(key, self.bucket.objects[key]) for key in shown if entries[key] == key]
        folders = [key for key in shown if entries[key] != key]
        return 200, answers.listing(self.name, prefix, found, folders, token, page), {}

    def _get(self) -> tuple[int, bytes, dict[str, str]]:
        stored = self.bucket.objects.get(self.key)
        if stored is None:
            return self._error(404, "NoSuchKey", "The specified key does not exist.")
        if self.headers.get("If-Match", stored.etag) not in (stored.etag, "*"):
            return self._error(412, "PreconditionFailed", "At least one of the preconditions did not hold.")
        size = len(stored.content)
        headers = {"ETag": stored.etag, "Last-Modified": _MODIFIED, "Accept-Ranges": "bytes"}
        asked = _RANGE.match(self.headers.get("Range", ""))
        if not asked:
            return 200, stored.content, headers
        start, stop = int(asked[1]), min(size, int(asked[2] or size) + 1)
        if start >= size:
            return self._error(416, "InvalidRange", "The requested range is not satisfiable")
        return 206, stored.content[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}

    def _put(self) -> tuple[int, bytes, dict[str, str]]:
        if "uploadId" in self.query:
            if self.query["uploadId"] not in self.bucket.uploads:
                return self._error(404, "NoSuchUpload", "The specified upload does not exist.")
            part = self.bucket.add_part(self.query["uploadId"], int(self.query["partNumber"]), self.body)
            return 200, b"", {"ETag": part}
        if self.headers.get("If-None-Match") == "*" and self.key in self.bucket.objects:
            return self._error(412, "PreconditionFailed", "The object exists.")
        expected, stored = self.headers.get("If-Match"), self.bucket.objects.get(self.key)
        if expected and (stored is None or stored.etag != expected):
            return self._error(412, "PreconditionFailed", "The object has another ETag.")
        return 200, b"", {"ETag": self.bucket.put(self.key, self.body)}

    def _multipart(self) -> tuple[int, bytes, dict[str, str]]:
        if "uploads" in self.query:
            return 200, answers.begun(self.name, self.key, self.bucket.begin(self.key)), {}
        upload = self.query.get("uploadId", "")
        if upload not in self.bucket.uploads:
            return self._error(404, "NoSuchUpload", "The specified upload does not exist.")
        try:
            etag = self.bucket.complete(upload, answers.named_parts(self.body))
        except ValueError as error:
            return self._error(400, str(error), "The parts do not fit.")
        return 200, answers.completed(self.name, self.key, etag), {}

    def _delete_many(self) -> tuple[int, bytes, dict[str, str]]:
        keys = re.findall(r"<Key>(.*?)</Key>", self.body.decode())
        for key in keys:
            self.bucket.objects.pop(answers.unescaped(key), None)
        return 200, answers.deleted(keys), {"Content-Type": "application/xml"}

    def _error(self, status: int, code: str, message: str) -> tuple[int, bytes, dict[str, str]]:
        return status, answers.error(code, message), {}

    def _fail(self, status: int, code: str, message: str) -> None:
        self._send(*self._error(status, code, message))

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        cut = self.fault == "cut" and bool(content) and self.command == "GET"
        sent = b"" if self.command == "HEAD" else content[: len(content) // 2] if cut else content
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if status in (200, 206) and "ETag" in headers and self.command == "GET":
            with self.server.lock:
                self.server.served[f"{self.name}/{self.key}"] += len(sent)
        self.wfile.write(sent)
        if cut:
            self.close_connection = True
