// Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.

/** The path that a call takes. */
export type Path = 'shm' | 'direct' | 'quic' | 'tls' | 'http' | 'punch' | 'relay' | 'pool';
