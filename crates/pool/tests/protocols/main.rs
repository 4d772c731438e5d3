//! The adapters against real servers: programs of the field, unmodified, through a listener on loopback; no node is needed.

#![allow(clippy::unwrap_used)] // a test that panics has failed, which is what it is for

mod careless;
mod clients;
mod dice;
mod http;
mod http_isolation;
mod odd;
mod postgres;
mod postgres_faults;
mod postgres_isolation;
mod postgres_raw;
mod postgres_server;
mod redis;
mod redis_isolation;
mod server;
mod stage;
