/* Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT. */
#ifndef NEARPATH_PATHS_H
#define NEARPATH_PATHS_H

/* The paths that np_reply_path returns. A later release may add paths. */
#define NP_PATH_SHM "shm" /* Shared memory of one machine: a descriptor moves, the payload stays. */
#define NP_PATH_LOOPBACK "loopback" /* HTTP to the function's own port, over a connection made inside the instance's network namespace. */
#define NP_PATH_DIRECT "direct" /* TCP from instance to instance on another machine, through a virtual switch. */
#define NP_PATH_QUIC "quic" /* A stream of a QUIC connection to the instance's watchdog. */
#define NP_PATH_TLS "tls" /* HTTP over TLS, with certificates on both sides, over a pooled connection. */
#define NP_PATH_HTTP "http" /* HTTP over a pooled TCP connection, in clear. */
#define NP_PATH_PUNCH "punch" /* A direct connection between two workers, through a hole in each NAT. */
#define NP_PATH_RELAY "relay" /* Bytes between two workers, forwarded by the rendezvous. */
#define NP_PATH_POOL "pool" /* A warm connection of the node's pool in the place of the function's own; else the egress proxy connects. */

#endif
