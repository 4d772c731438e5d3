"""Checkpoints in an object store that speaks S3. Objects have the names and the bytes that a folder's files have."""

import contextlib
import functools
import io
import json
import math
import os
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ._s3_errors import code_of, raise_object_errors, translated_errors
from ._s3_parts import PART_BYTES, Joined, import_optional, transfer
from ._store import Store, new_mark

HEADER = b"nearpath state 1\n"
STATE_OFFSET = len(HEADER) + 4
# Tries of one request by boto3, with pauses that are longer in its older versions.
MAX_TRIES = 5
# Unanswered operations are repeated for this many seconds after the first failure.
RETRY_TIMEOUT, RETRY_INTERVAL = 30.0, 0.5
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 30.0  # seconds of one try without a response
COMPLETE, IN_CONFLICT = "complete", "ConditionalRequestConflict"


@dataclass(frozen=True)
class Place:
    """A prefix in a store. Each machine finds its own credentials, as boto3 does."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None

    @classmethod
    def parse(cls, url: str) -> "Place":
        parts = urllib.parse.urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError(f"credentials do not belong in {parts.scheme}://…: set them where boto3 reads them (environment, role, profile)")
        options = dict(urllib.parse.parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True))
        endpoint, region = options.pop("endpoint", None), options.pop("region", None)
        if not parts.netloc or options or parts.fragment:
            raise ValueError(f"invalid store {url}: expected s3://bucket/prefix?endpoint=https://…&region=…")
        if endpoint is not None:
            _check(endpoint)
        names = [name for name in parts.path.split("/") if name]  # stores with objects as files refuse empty names
        if not {".", ".."}.isdisjoint(names):
            raise ValueError(f"invalid prefix {parts.path}: . and .. differ between stores, so remove them")
        return cls(parts.netloc, "".join(f"{name}/" for name in names), endpoint, region)


def _check(endpoint: str) -> None:
    parts = urllib.parse.urlsplit(endpoint)
    if "@" in parts.netloc:
        raise ValueError("credentials do not belong in the endpoint of a store: set them where boto3 reads them")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"invalid store endpoint {endpoint!r}: expected https://HOST or http://HOST")


P = ParamSpec("P")
T = TypeVar("T")


def _retried(work: Callable[P, T]) -> Callable[P, T]:
    """Repeats an operation after a ConnectionError, because a store may restart. All operations are repeatable."""

    @functools.wraps(work)
    def retry(*args: P.args, **kwargs: P.kwargs) -> T:
        end = math.inf
        while True:
            try:
                return work(*args, **kwargs)
            except ConnectionError:
                end = min(end, time.monotonic() + RETRY_TIMEOUT)
                if time.monotonic() >= end:
                    raise
                time.sleep(RETRY_INTERVAL)

    return retry


class ObjectStore(Store):
    """One job's part of a bucket."""

    def __init__(self, url: str) -> None:
        self._place = Place.parse(url)
        self._session = import_optional("boto3").session.Session()
        self._client_of: tuple[int, Any] | None = None

    @property
    def _client(self) -> Any:
        """Returns this process's client, because connections do not survive a fork."""
        if self._client_of is None or self._client_of[0] != os.getpid():
            self._client_of = os.getpid(), self._connect()
        return self._client_of[1]

    def _connect(self) -> Any:
        place, config = self._place, import_optional("botocore.config").Config
        tries = int(os.environ.get("AWS_MAX_ATTEMPTS") or MAX_TRIES)
        options = config(
            connect_timeout=CONNECT_TIMEOUT, read_timeout=READ_TIMEOUT, tcp_keepalive=True, retries={"mode": "standard", "total_max_attempts": tries},
            request_checksum_calculation="when_required", response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if place.endpoint else None,
        )  # fmt: skip
        region = place.region or self._session.region_name or ("us-east-1" if place.endpoint else None)
        with translated_errors(f"s3://{place.bucket}", "be reached"):
            return self._session.client("s3", endpoint_url=place.endpoint, region_name=region, config=options)

    # The operations of a store.

    @_retried
    def save(self, number: int, worker: str, state: bytes) -> str:
        mark, view = new_mark(), memoryview(state)
        header = HEADER + zlib.crc32(view).to_bytes(4, "little")
        self._put(self._key(number, f"{worker}.{mark}.state"), header, view)
        return mark

    @_retried
    def load(self, number: int, worker: str) -> memoryview:
        mark = self._manifest(number)["states"].get(worker)
        if mark is None:
            raise FileNotFoundError(f"checkpoint {number} in {self._url('')} has no state of {worker}")
        key = self._key(number, f"{worker}.{mark}.state")
        content = self._get(key)
        if content[: len(HEADER)] != HEADER or zlib.crc32(content[STATE_OFFSET:]) != int.from_bytes(content[STATE_OFFSET - 4 : STATE_OFFSET], "little"):
            raise self._damage_error(key, number)
        return content[STATE_OFFSET:]

    @_retried
    def complete(self, number: int, states: Mapping[str, str], finished: Sequence[str]) -> None:
        manifest = {"number": number, "states": dict(sorted(states.items())), "finished": list(finished)}
        present = list(self._numbered())
        newest = max((other for other, key in present if key.endswith(f"/{COMPLETE}")), default=0)
        if newest > number:
            raise self._conflict_error(newest)
        self._put_once(number, json.dumps(manifest, separators=(",", ":")).encode())
        with contextlib.suppress(ConnectionError):  # the next completion removes the rest
            self._remove([key for other, key in present if other < number])

    @_retried
    def latest(self) -> str | None:
        newest = max((number for number, key in self._numbered() if key.endswith(f"/{COMPLETE}")), default=None)
        return None if newest is None else json.dumps(self._manifest(newest))

    @_retried
    def clear(self) -> None:
        self._remove([key for _, key in self._numbered()])
        with contextlib.suppress(OSError):  # some stores have no uploads, some users no permission
            self._abort_uploads()

    # Objects.

    def _key(self, number: int, name: str) -> str:
        return f"{self._place.prefix}{number:08}/{name}"

    def _url(self, key: str) -> str:
        return f"s3://{self._place.bucket}/{key or self._place.prefix}"

    def _manifest(self, number: int) -> dict[str, Any]:
        key = self._key(number, COMPLETE)
        try:
            manifest: dict[str, Any] = json.loads(bytes(self._get(key)))
            return manifest
        except ValueError:
            raise self._damage_error(key, number) from None

    def _get(self, key: str) -> memoryview:
        into = io.BytesIO()
        with translated_errors(self._url(key), "be read"):
            self._client.download_fileobj(self._place.bucket, key, into, Config=transfer())
        return into.getbuffer()

    def _put(self, key: str, header: bytes, state: memoryview) -> None:
        with translated_errors(self._url(key), "be written"):
            if len(state) < PART_BYTES:
                self._client.put_object(Bucket=self._place.bucket, Key=key, Body=b"".join((header, state)))
            else:
                parts = io.BufferedReader(Joined(header, state), 1 << 20)
                self._client.upload_fileobj(parts, self._place.bucket, key, Config=transfer())

    def _put_once(self, number: int, text: bytes, tries: int = MAX_TRIES) -> None:
        """Writes once. An existing object comes from a lost response or from another run."""
        key = self._key(number, COMPLETE)
        with translated_errors(self._url(key), "be written"):
            try:
                self._client.put_object(Bucket=self._place.bucket, Key=key, Body=text, IfNoneMatch="*")
                return
            except Exception as error:
                code = code_of(error)
                if code not in ("PreconditionFailed", "NotImplemented") and not (code == IN_CONFLICT and tries > 1):
                    raise
        if code == IN_CONFLICT:  # another run is writing it
            return self._put_once(number, text, tries - 1)
        self._compare(number, text) if code == "PreconditionFailed" else self._put_unconditionally(number, text)

    def _put_unconditionally(self, number: int, text: bytes) -> None:
        """Writes to a store without conditional writes. Concurrent runs are detected unless they write simultaneously."""
        with contextlib.suppress(FileNotFoundError):
            return self._compare(number, text)
        self._put(self._key(number, COMPLETE), b"", memoryview(text))

    def _compare(self, number: int, text: bytes) -> None:
        if bytes(self._get(self._key(number, COMPLETE))) != text:
            raise self._conflict_error(number)

    def _numbered(self) -> Iterator[tuple[int, str]]:
        """Yields all keys of checkpoints with their numbers."""
        with translated_errors(self._url(""), "be listed"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._place.bucket, Prefix=self._place.prefix):
                for key in (entry["Key"] for entry in page.get("Contents", ())):
                    number = key[len(self._place.prefix) :].partition("/")[0]
                    if number.isdecimal():
                        yield int(number), key

    def _remove(self, keys: list[str]) -> None:
        with translated_errors(self._url(""), "remove objects"):
            for start in range(0, len(keys), 1000):
                objects = [{"Key": key} for key in keys[start : start + 1000]]
                answer = self._client.delete_objects(Bucket=self._place.bucket, Delete={"Objects": objects, "Quiet": True})
                raise_object_errors(answer, self._url(""), "remove objects")

    def _abort_uploads(self) -> None:
        """Aborts unfinished uploads."""
        bucket = self._place.bucket
        with translated_errors(self._url(""), "abort uploads"):
            for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=self._place.prefix):
                for upload in page.get("Uploads", ()):
                    self._client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _conflict_error(self, number: int) -> FileExistsError:
        return FileExistsError(
            f"another run of this job has completed checkpoint {number} in {self._url('')}: end one of the two runs"
        )

    def _damage_error(self, key: str, number: int) -> OSError:
        return OSError(f"{self._url(key)} is damaged: remove the checkpoint {number} to resume from an older one")
