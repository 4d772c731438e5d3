"""Wraps a response from shared memory as a response of urllib3."""

import http.client
import io
import sys
from collections.abc import Iterator
from typing import Any

from requests import PreparedRequest
from urllib3 import HTTPHeaderDict, HTTPResponse
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from . import Error, Response


class _Parts(io.BufferedIOBase):
    """Reads the parts of a body as a file. `read1` returns received data, and waits only without any."""

    def __init__(self, answer: Response, url: str) -> None:
        self._answer, self._parts, self._url = answer, answer.stream, url
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        parts, wanted = [], sys.maxsize if size is None or size < 0 else size
        while wanted and (part := self.read1(wanted)):
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def read1(self, size: int = -1) -> bytes:
        while not self._rest:
            part = self._next()
            if part is None:
                return b""
            self._rest = part
        size = len(self._rest) if size < 0 else size
        chunk, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return chunk

    def _next(self) -> memoryview | None:
        try:
            return next(self._parts, None)
        except Error as error:
            if error.kind == "timeout":
                raise ReadTimeoutError(None, self._url, str(error)) from error  # type: ignore[arg-type]
            raise ProtocolError(str(error), error) from error

    def close(self) -> None:
        if not self.closed:
            self._rest = memoryview(b"")  # frees its slot
            self._answer.close()
        super().close()


class _StreamedResponse(HTTPResponse):
    """Streams a body without a length part by part, like a chunked response."""

    def stream(self, amt: int | None = 65536, decode_content: bool | None = None) -> Iterator[bytes]:  # type: ignore[override]
        if self.length_remaining is not None:
            yield from super().stream(amt, decode_content)
            return
        while part := self.read1(amt, decode_content):
            yield part
        self.close()


class _OriginalResponse:
    """Holds header fields in the form of http.client, which cookie jars read."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.msg = http.client.HTTPMessage()
        for name, value in fields:
            self.msg.add_header(name, value)

    def isclosed(self) -> bool:
        return True

    def close(self) -> None:
        pass


def raw_response(request: PreparedRequest, status: int, fields: list[tuple[str, str]], body: Any, stream: bool) -> HTTPResponse:
    """Returns a response of urllib3. `body` is bytes or a response, which `stream` reads as it arrives."""
    url = request.url or ""
    response_class: type[HTTPResponse] = _StreamedResponse
    file: io.BufferedIOBase
    bodiless = request.method == "HEAD" or status in (204, 304)
    length = body.length if isinstance(body, Response) else len(body)
    if bodiless and isinstance(body, Response):
        body.close()
    if stream and not bodiless:
        file = _Parts(body, url)
    else:
        content = b"" if bodiless else bytes(getattr(body, "body", body))
        response_class, file, length = HTTPResponse, io.BytesIO(content), length if bodiless else len(content)
    if length is not None and (length or not bodiless) and status not in (204, 304):
        fields = [*fields, ("Content-Length", str(length))]
    original: Any = _OriginalResponse(fields)
    return response_class(
        body=file,
        headers=HTTPHeaderDict(fields),
        status=status,
        version=11,
        reason=http.client.responses.get(status, ""),
        preload_content=False,
        decode_content=False,
        original_response=original,
        request_method=request.method,
        request_url=url,
    )
