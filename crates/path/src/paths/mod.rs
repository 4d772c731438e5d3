// Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.
//! The module of each path, with the function that returns its obstacle.

pub(crate) mod http;
pub(crate) mod loopback;
pub(crate) mod pool;
pub(crate) mod punch;
pub(crate) mod quic;
pub(crate) mod relay;
pub(crate) mod shm;
pub(crate) mod tls;
