// Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.

/** The path of a call. */
export type Path = 'shm' | 'loopback' | 'direct' | 'quic' | 'tls' | 'http' | 'punch' | 'relay' | 'pool';
