"""Reads a function's description from a gateway of nearpath or OpenFaaS."""

import base64
import http.client
import json
import math
import os
import pathlib
import re
import ssl
import urllib.parse
from dataclasses import dataclass
from typing import Any

TIMEOUT = 10.0  # seconds to connect, and for each response about a function
MAX_RESPONSE_BYTES = 4 << 20
DEFAULT_EXEC_TIMEOUT = "30s"  # the default of OpenFaaS's watchdog
UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class Gateway:
    """A gateway's address and the caller's credentials."""

    def __init__(self, url: str, auth: tuple[str, str] | None = None) -> None:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"invalid gateway address {url!r}: expected http://HOST:PORT or https://HOST:PORT")
        self.host, self.base = parts.hostname, parts.path.rstrip("/")
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # for messages, without the password
        self._scheme, self._port = parts.scheme, parts.port or (443 if parts.scheme == "https" else 80)
        url_auth = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")) if parts.username else None
        self._auth = auth or url_auth or credentials(self.host)

    def connect(self) -> http.client.HTTPConnection:
        """Opens a connection. Raises OSError on failure."""
        if self._scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(self.host, self._port, timeout=TIMEOUT, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=TIMEOUT)
        connection.connect()
        return connection

    def describe(self, function: str) -> "Function | None":
        """Describes a deployed function; None without permission. Raises LookupError if there is none."""
        name, _, namespace = function.partition(".")
        query = f"?namespace={quoted(namespace)}" if namespace else ""
        status, description = self._get(f"/system/function/{quoted(name)}{query}")
        if status in (401, 403):
            return None
        if status == 404:
            raise LookupError(f"there is no function {function!r} at {self.url}: deploy it, or correct the name")
        if status != 200 or not isinstance(description, dict):
            raise ConnectionError(f"{self.url} does not describe function {function!r}: status {status}")
        _, info = self._get("/system/info")
        return Function(_is_nearpath(info), description.get("envVars") or {}, description.get("annotations") or {})

    def _get(self, path: str) -> tuple[int, Any]:
        try:
            connection = self.connect()
            try:
                connection.request("GET", self.base + path, headers=self._auth_headers())
                response = connection.getresponse()
                return response.status, _json(response.read(MAX_RESPONSE_BYTES))
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            start = "start it (`nearpath up`), or correct the address"
            raise ConnectionError(f"no gateway answers at {self.url}: {error or type(error).__name__}; {start}") from error

    def _auth_headers(self) -> dict[str, str]:
        if self._auth is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(":".join(self._auth).encode()).decode()}


@dataclass(frozen=True)
class Function:
    """A function's description, as far as it bounds a call's time."""

    is_nearpath: bool
    variables: dict[str, str]
    annotations: dict[str, str]

    def max_seconds(self) -> float:
        """Seconds that one call may take."""
        if not self.is_nearpath:
            return limit(self.variables.get("exec_timeout", DEFAULT_EXEC_TIMEOUT))
        if self.variables.get("mode") == "http":
            return math.inf  # only silence ends a streamed response
        total, first = (limit(self.annotations.get(f"nearpath.io/{name}-timeout", "60s")) for name in ("total", "first-byte"))
        return min(total, first, limit(self.variables.get("exec_timeout") or "0"))


def quoted(name: str) -> str:
    """Quotes a name as one path segment."""
    return urllib.parse.quote(name, safe="")


def limit(text: str) -> float:
    """Parses a duration (`30`, `30s`, `1m30s`) as seconds. Returns infinity for 0 and for other text."""
    try:
        seconds = float(text)
    except ValueError:
        found = re.fullmatch(r"((\d+(\.\d*)?|\.\d+)(h|m|s|ms|us|µs|ns))+", text)
        parts = re.findall(r"([\d.]+)(ms|us|µs|ns|h|m|s)", text) if found else []
        seconds = sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)
    return seconds if seconds > 0 else math.inf


def credentials(host: str) -> tuple[str, str] | None:
    """Returns the credentials of the environment, or those of `nearpath up` for this machine's gateway."""
    name, password = os.environ.get("NEARPATH_USERNAME"), os.environ.get("NEARPATH_PASSWORD")
    if password:
        return name or "admin", password
    if host not in ("localhost", "127.0.0.1", "::1"):
        return None  # a local password is sent to this machine only
    folder = data_folder()
    try:
        return name or (folder / "basic-auth-user").read_text().strip(), (folder / "basic-auth-password").read_text().strip()
    except OSError:
        return None


def data_folder() -> pathlib.Path:
    """Returns the default data folder of `nearpath up`."""
    if folder := os.environ.get("NEARPATH_DATA_DIR"):
        return pathlib.Path(folder)
    if os.geteuid() == 0:
        return pathlib.Path("/var/lib/nearpath")
    state = os.environ.get("XDG_STATE_HOME")
    return pathlib.Path(state) / "nearpath" if state else pathlib.Path.home() / ".local/state/nearpath"


def _is_nearpath(info: Any) -> bool:
    provider = info.get("provider") if isinstance(info, dict) else None
    return isinstance(provider, dict) and provider.get("provider") == "nearpath"


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
