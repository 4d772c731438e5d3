"""What a gateway of nearpath or OpenFaaS says of a function, and how it is asked."""

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

PATIENCE = 10.0  # seconds to connect, and for each answer that tells of a function
LARGEST = 4 << 20
WATCHDOG = "30s"  # OpenFaaS's watchdog ends a call after that, where nothing is said
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class Gateway:
    """A gateway's address, and who asks it."""

    def __init__(self, url: str, auth: tuple[str, str] | None = None) -> None:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no gateway's address: http://HOST:PORT or https://HOST:PORT")
        self.host, self.base = parts.hostname, parts.path.rstrip("/")
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # for people: a password is not for them
        self._scheme, self._port = parts.scheme, parts.port or (443 if parts.scheme == "https" else 80)
        named = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")) if parts.username else None
        self._auth = auth or named or credentials(self.host)

    def connect(self) -> http.client.HTTPConnection:
        """A new connection. OSError when there is none."""
        if self._scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(self.host, self._port, timeout=PATIENCE, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=PATIENCE)
        connection.connect()
        return connection

    def describe(self, function: str) -> "Function | None":
        """What is deployed under that name; None when the gateway does not tell it to who asks. LookupError: there is none."""
        name, _, namespace = function.partition(".")
        query = f"?namespace={quoted(namespace)}" if namespace else ""
        status, told = self._ask(f"/system/function/{quoted(name)}{query}")
        if status in (401, 403):
            return None
        if status == 404:
            raise LookupError(f"there is no function {function!r} at {self.url}: deploy it, or say another name")
        if status != 200 or not isinstance(told, dict):
            raise ConnectionError(f"{self.url} does not describe function {function!r}: status {status}")
        _, about = self._ask("/system/info")
        return Function(_is_nearpath(about), told.get("envVars") or {}, told.get("annotations") or {})

    def _ask(self, path: str) -> tuple[int, Any]:
        try:
            connection = self.connect()
            try:
                connection.request("GET", self.base + path, headers=self._authorized())
                answer = connection.getresponse()
                return answer.status, _json(answer.read(LARGEST))
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            start = "start it (`nearpath up`), or say another address"
            raise ConnectionError(f"no gateway answers at {self.url}: {error or type(error).__name__}; {start}") from error

    def _authorized(self) -> dict[str, str]:
        if self._auth is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(":".join(self._auth).encode()).decode()}


@dataclass(frozen=True)
class Function:
    """A function's description, as far as it says how long a call may take."""

    is_nearpath: bool
    variables: dict[str, str]
    annotations: dict[str, str]

    def longest(self) -> float:
        """Seconds that one call may take."""
        if not self.is_nearpath:
            return limit(self.variables.get("exec_timeout", WATCHDOG))
        if self.variables.get("mode") == "http":
            return math.inf  # lines of JSON are ended by silence alone
        total, first = (limit(self.annotations.get(f"nearpath.io/{name}-timeout", "60s")) for name in ("total", "first-byte"))
        return min(total, first, limit(self.variables.get("exec_timeout") or "0"))


def quoted(name: str) -> str:
    """As one piece of a path, whatever is in it."""
    return urllib.parse.quote(name, safe="")


def limit(text: str) -> float:
    """Seconds, of `30`, `30s`, `1m30s`; endless of 0, and of what is no duration."""
    try:
        seconds = float(text)
    except ValueError:
        found = re.fullmatch(r"((\d+(\.\d*)?|\.\d+)(h|m|s|ms|us|µs|ns))+", text)
        parts = re.findall(r"([\d.]+)(ms|us|µs|ns|h|m|s)", text) if found else []
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    return seconds if seconds > 0 else math.inf


def credentials(host: str) -> tuple[str, str] | None:
    """Those of the environment; for this machine's gateway, those that `nearpath up` made."""
    name, password = os.environ.get("NEARPATH_USERNAME"), os.environ.get("NEARPATH_PASSWORD")
    if password:
        return name or "admin", password
    if host not in ("localhost", "127.0.0.1", "::1"):
        return None  # a local password goes nowhere else
    folder = data_folder()
    try:
        return name or (folder / "basic-auth-user").read_text().strip(), (folder / "basic-auth-password").read_text().strip()
    except OSError:
        return None


def data_folder() -> pathlib.Path:
    """Where `nearpath up` keeps its state when nothing is said."""
    if named := os.environ.get("NEARPATH_DATA_DIR"):
        return pathlib.Path(named)
    if os.geteuid() == 0:
        return pathlib.Path("/var/lib/nearpath")
    state = os.environ.get("XDG_STATE_HOME")
    return pathlib.Path(state) / "nearpath" if state else pathlib.Path.home() / ".local/state/nearpath"


def _is_nearpath(about: Any) -> bool:
    provider = about.get("provider") if isinstance(about, dict) else None
    return isinstance(provider, dict) and provider.get("provider") == "nearpath"


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
