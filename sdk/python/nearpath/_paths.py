# Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.
"""Paths of calls, and names of the obstacles to a nearer path."""

from typing import Final, Literal, TypeAlias

Path: TypeAlias = Literal["shm", "loopback", "direct", "quic", "tls", "http", "punch", "relay", "pool"]
PATHS: Final[tuple[Path, ...]] = ("shm", "loopback", "direct", "quic", "tls", "http", "punch", "relay", "pool")

EXCLUDED: Final = "excluded"  # a setting excludes this path: the function's nearpath.io/transport, or the link's relay
OTHER_NODE: Final = "other_node"  # the instance is on another machine
NO_DOMAIN: Final = "no_domain"  # the function belongs to no chain (nearpath.io/chain), so it shares no memory
OTHER_DOMAIN: Final = "other_domain"  # caller and callee belong to different chains
CALLER_NO_ENDPOINT: Final = "caller_no_endpoint"  # the caller does not use shared memory: its calls go to the gateway over HTTP
NO_ENDPOINT: Final = "no_endpoint"  # the instance does not take calls through shared memory
OWN_PORT: Final = "own_port"  # the function's code takes calls at its own port, which is nearer than its watchdog's shared memory
NO_ROOM: Final = "no_room"  # the channel or the memory pool had no room for the call at that moment
UPGRADE: Final = "upgrade"  # an upgraded connection needs a connection of its own
BULK: Final = "bulk"  # the body is long or of unknown length, which TLS carries to another machine with less CPU time
KEPT_TLS: Final = "kept_tls"  # kept TLS connections to the node carry complete requests with less CPU time
GRPC: Final = "grpc"  # gRPC needs HTTP/2 up to the function
TRAILERS: Final = "trailers"  # the request announces trailers (`Trailer`), which messages in memory do not have
CALLER_NO_IDENTITY: Final = "caller_no_identity"  # the caller has no certificate: its calls go to the gateway over HTTP
NO_IDENTITY: Final = "no_identity"  # the instance has no certificate; its log has the cause
UDP_BLOCKED: Final = "udp_blocked"  # the instance did not answer over UDP recently; calls retry it from time to time
NO_TLS: Final = "no_tls"  # caller and instance do not support TLS over TCP
