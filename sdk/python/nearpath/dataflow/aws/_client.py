"""Makes clients of Lambda's API without retries, whose timeout covers a whole invocation."""

import importlib
from typing import Any

# A connection is idle for up to fifteen minutes. NATs drop it sooner, so TCP keep-alive is on.
CLIENT_SETTINGS: dict[str, Any] = {"connect_timeout": 10, "tcp_keepalive": True, "max_pool_connections": 1000}
SINGLE_ATTEMPT = {"total_max_attempts": 1, "mode": "standard"}
# Seconds besides the function's own: the cold start and the network.
INVOKE_MARGIN = 120.0


def import_optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"nearpath.dataflow.aws needs {name}: pip install boto3") from None


def make(region: str | None, endpoint: str | None, limit: float) -> Any:
    """Makes a client with a timeout for one invocation of `limit` seconds."""
    settings = import_optional("botocore.config").Config(read_timeout=limit + INVOKE_MARGIN, retries=SINGLE_ATTEMPT, **CLIENT_SETTINGS)
    # A new session, because boto3's default one keeps its first credentials.
    return import_optional("boto3").Session().client("lambda", region_name=region, endpoint_url=endpoint, config=settings)


def check(client: Any, limit: float) -> None:
    """Raises ValueError for a client with retries, which start workers twice, or with a short timeout."""
    settings = client.meta.config
    attempts = (settings.retries or {}).get("total_max_attempts")
    if attempts != 1:
        raise ValueError(
            "the client has retries, which start workers twice: set Config(retries={'total_max_attempts': 1})"
        )
    if settings.read_timeout is not None and settings.read_timeout < limit:
        raise ValueError(
            f"the client times out after {settings.read_timeout} s: set Config(read_timeout={limit + INVOKE_MARGIN:.0f})"
        )
