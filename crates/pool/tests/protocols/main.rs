//! The adapters against real servers: programs of the field, unmodified, through a listener on loopback; no node is needed.

mod clients;
mod redis;
mod redis_isolation;
mod server;
mod stage;
