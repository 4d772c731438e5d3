'use strict';
// Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.

/** Paths of calls. */
const Path = Object.freeze({
  /** Shared memory of one machine: a descriptor moves, the payload stays. */
  SHM: 'shm',
  /** HTTP to the function's own port, over a connection made inside the instance's network namespace. */
  LOOPBACK: 'loopback',
  /** TCP from instance to instance on another machine, through a virtual switch. */
  DIRECT: 'direct',
  /** A stream of a QUIC connection to the instance's watchdog. */
  QUIC: 'quic',
  /** HTTP over TLS, with certificates on both sides, over a pooled connection. */
  TLS: 'tls',
  /** HTTP over a pooled TCP connection, in clear. */
  HTTP: 'http',
  /** A direct connection between two workers, through a hole in each NAT. */
  PUNCH: 'punch',
  /** Bytes between two workers, forwarded by the rendezvous. */
  RELAY: 'relay',
  /** A warm connection of the node's pool in the place of the function's own; else the egress proxy connects. */
  POOL: 'pool',
});

/** Names of the obstacles to a nearer path. */
const Obstacle = Object.freeze({
  /** a setting excludes this path: the function's nearpath.io/transport, or the link's relay */
  EXCLUDED: 'excluded',
  /** the instance is on another machine */
  OTHER_NODE: 'other_node',
  /** the function belongs to no chain (nearpath.io/chain), so it shares no memory */
  NO_DOMAIN: 'no_domain',
  /** caller and callee belong to different chains */
  OTHER_DOMAIN: 'other_domain',
  /** the caller does not use shared memory: its calls go to the gateway over HTTP */
  CALLER_NO_ENDPOINT: 'caller_no_endpoint',
  /** the instance does not take calls through shared memory */
  NO_ENDPOINT: 'no_endpoint',
  /** the function's code takes calls at its own port, which is nearer than its watchdog's shared memory */
  OWN_PORT: 'own_port',
  /** the channel or the memory pool had no room for the call at that moment */
  NO_ROOM: 'no_room',
  /** an upgraded connection needs a connection of its own */
  UPGRADE: 'upgrade',
  /** the body is long or of unknown length, which TLS carries to another machine with less CPU time */
  BULK: 'bulk',
  /** kept TLS connections to the node carry complete requests with less CPU time */
  KEPT_TLS: 'kept_tls',
  /** gRPC needs HTTP/2 up to the function */
  GRPC: 'grpc',
  /** the request announces trailers (`Trailer`), which messages in memory do not have */
  TRAILERS: 'trailers',
  /** the caller has no certificate: its calls go to the gateway over HTTP */
  CALLER_NO_IDENTITY: 'caller_no_identity',
  /** the instance has no certificate; its log has the cause */
  NO_IDENTITY: 'no_identity',
  /** the instance did not answer over UDP recently; calls retry it from time to time */
  UDP_BLOCKED: 'udp_blocked',
  /** caller and instance do not support TLS over TCP */
  NO_TLS: 'no_tls',
});

module.exports = { Path, Obstacle };
