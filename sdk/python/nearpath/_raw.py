"""An answer that came through memory, as urllib3 shows one."""

import http.client
import io
from collections.abc import Iterator
from typing import Any

from requests import PreparedRequest
from urllib3 import HTTPResponse
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from . import Error, Response


class _Parts(io.RawIOBase):
    """The parts of a body as a file: a read gives what has come, and waits only where nothing has."""

    def __init__(self, answer: Response, url: str) -> None:
        self._answer, self._parts, self._url = answer, answer.stream, url
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(65536), b""))
        while not self._left:
            part = self._next()
            if part is None:
                return b""
            self._left = part
        taken, self._left = bytes(self._left[:size]), self._left[size:]
        return taken

    def _next(self) -> memoryview | None:
        try:
            return next(self._parts, None)
        except Error as error:
            if error.kind == "timeout":
                raise ReadTimeoutError(None, self._url, str(error)) from error  # type: ignore[arg-type]
            raise ProtocolError(str(error), error) from error

    def close(self) -> None:
        if not self.closed:
            self._left = memoryview(b"")  # its slot is free
            self._answer.close()
        super().close()


class _Streamed(HTTPResponse):
    """Parts are handed on as they come, as those of a chunked answer are."""

    def stream(self, amt: int | None = 65536, decode_content: bool | None = None) -> Iterator[bytes]:  # type: ignore[override]
        if self.headers.get("content-encoding") and decode_content:
            yield from super().stream(amt, decode_content)
            return
        with self._error_catcher():
            while self._fp is not None and (part := self._fp.read(amt or 65536)):
                yield part
        self.close()


class _Original:
    """What http.client would have read: cookies are looked for there."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.msg = http.client.HTTPMessage()
        for name, value in fields:
            self.msg.add_header(name, value)

    def isclosed(self) -> bool:
        return True

    def close(self) -> None:
        pass


def raw_response(request: PreparedRequest, status: int, fields: list[tuple[str, str]], body: Any, stream: bool) -> HTTPResponse:
    """`body` is an answer, or bytes; with `stream` an answer's body is read as it comes."""
    url = request.url or ""
    made: type[HTTPResponse] = _Streamed
    file: io.RawIOBase | io.BytesIO
    if stream:
        file = _Parts(body, url)
    else:
        bodiless = request.method == "HEAD" or status in (204, 304)
        whole = b"" if bodiless else bytes(getattr(body, "body", body))
        made, file = HTTPResponse, io.BytesIO(whole)
        if not bodiless and "content-length" not in (name for name, _ in fields):
            fields = [*fields, ("Content-Length", str(len(whole)))]
    original: Any = _Original(fields)
    shown = made(
        body=file,
        status=status,
        version=11,
        reason=http.client.responses.get(status, ""),
        preload_content=False,
        original_response=original,
        request_method=request.method,
        request_url=url,
    )
    for name, value in fields:
        shown.headers.add(name, value)
    return shown
