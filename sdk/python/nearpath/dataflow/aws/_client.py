"""Clients of Lambda's API that wait as long as a worker may work, and ask once."""

import importlib
from typing import Any

# A connection that says nothing for fifteen minutes: NATs on the way forget it sooner, so the kernel's keep-alive is on.
CLIENT_SETTINGS: dict[str, Any] = {"connect_timeout": 10, "tcp_keepalive": True, "max_pool_connections": 1000}
SINGLE_ATTEMPT = {"total_max_attempts": 1, "mode": "standard"}
# Seconds beside the function's own: a cold start, and the way there and back.
INVOKE_MARGIN = 120.0


def import_optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"nearpath.dataflow.aws needs {name}: pip install 'nearpath[aws]'") from None


def make(region: str | None, endpoint: str | None, limit: float) -> Any:
    """A client whose connections stay open for one invocation of `limit` seconds."""
    settings = import_optional("botocore.config").Config(read_timeout=limit + INVOKE_MARGIN, retries=SINGLE_ATTEMPT, **CLIENT_SETTINGS)
    # Not boto3's own session, which keeps the credentials that it had first.
    return import_optional("boto3").Session().client("lambda", region_name=region, endpoint_url=endpoint, config=settings)


def check(client: Any, limit: float) -> None:
    """A client that asks again by itself would start a worker twice; one that hangs up early would not hear how it ended."""
    settings = client.meta.config
    attempts = (settings.retries or {}).get("total_max_attempts")
    if attempts != 1:
        raise ValueError(
            "the client tries again by itself, which starts workers twice: give it Config(retries={'total_max_attempts': 1})"
        )
    if settings.read_timeout is not None and settings.read_timeout < limit:
        raise ValueError(
            f"the client hangs up after {settings.read_timeout} s: give it Config(read_timeout={limit + INVOKE_MARGIN:.0f})"
        )
