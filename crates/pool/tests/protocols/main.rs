//! The adapters against real servers: programs of the field, unmodified, through a listener on loopback; no node is needed.

mod clients;
mod postgres;
mod postgres_faults;
mod postgres_isolation;
mod postgres_raw;
mod postgres_server;
mod redis;
mod redis_isolation;
mod server;
mod stage;
