from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self, TypeAlias, overload

from typing_extensions import Buffer as _Buffer

from ._paths import Path as Path

class Buffer:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def truncate(self, bytes: int, /) -> None: ...
    @property
    def in_slot(self) -> bool: ...

Payload: TypeAlias = _Buffer | str
# Sent as it yields.
Pieces: TypeAlias = Iterator[Payload]
Headers: TypeAlias = Mapping[str, str | bytes]

class Error(Exception):
    kind: Literal["name", "head", "unsent", "died", "timeout", "truncated", "too_large", "platform", "listen"]
    function: str
    path: Path | None
    retry_is_safe: bool
    status: int | None
    reason: str | None
    text: str | None

class Request:
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def body(self) -> memoryview: ...
    @property
    def caller(self) -> str | None: ...
    @property
    def arrival_path(self) -> Path: ...
    @property
    def is_event(self) -> bool: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def stream(self) -> Iterator[memoryview]: ...
    @property
    def time_left(self) -> float | None: ...

class Response:
    def __init__(self, body: Payload | Pieces | None = None, status: int = 200, headers: Headers | None = None) -> None: ...
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def body(self) -> memoryview: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def obstacle(self) -> str | None: ...
    @property
    def fields(self) -> list[tuple[str, str]]: ...
    @property
    def length(self) -> int | None: ...
    @property
    def instance(self) -> int | None: ...
    @property
    def stream(self) -> Iterator[memoryview]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Published:
    def __init__(self, sent: int, missed: int) -> None: ...
    @property
    def sent(self) -> int: ...
    @property
    def missed(self) -> int: ...

Answer: TypeAlias = Response | Payload | Pieces | tuple[int, Response | Payload | Pieces | None] | None

def serve(handler: Callable[[Request], Answer], /, *, threads: int = 1, stream: bool = False) -> None: ...
def buffer(bytes: int, /) -> Buffer: ...
def call(
    name: str,
    payload: Payload | Pieces | None = None,
    /,
    *,
    stream: bool = False,
    method: str | None = None,
    path: str | None = None,
    headers: Headers | None = None,
    deadline: float | None = None,
    idle_timeout: float | None = None,
    idempotent: bool = False,
    shm_only: bool = False,
) -> Response: ...
def call_later(
    name: str,
    payload: Payload | None = None,
    /,
    *,
    callback: str | None = None,
    method: str | None = None,
    path: str | None = None,
    headers: Headers | None = None,
) -> str | None: ...
def propagated_fields() -> list[tuple[str, str]]: ...
@overload
def gather(
    *calls: tuple[str, Payload],
    return_errors: Literal[False] = False,
    method: str | None = None,
    path: str | None = None,
    headers: Headers | None = None,
    deadline: float | None = None,
    idempotent: bool = False,
    shm_only: bool = False,
) -> list[Response]: ...
@overload
def gather(
    *calls: tuple[str, Payload],
    return_errors: Literal[True],
    method: str | None = None,
    path: str | None = None,
    headers: Headers | None = None,
    deadline: float | None = None,
    idempotent: bool = False,
    shm_only: bool = False,
) -> list[Response | Error]: ...
def notify(
    name: str,
    payload: Payload | None = None,
    /,
    *,
    method: str | None = None,
    path: str | None = None,
    headers: Headers | None = None,
    deadline: float | None = None,
    shm_only: bool = False,
) -> None: ...
def publish(
    topic: str,
    payload: Payload | None = None,
    /,
    *,
    method: str | None = None,
    path: str | None = None,
    headers: Headers | None = None,
    deadline: float | None = None,
) -> Published: ...
