//! The adapters against real servers: programs of the field, unmodified, through a listener on loopback; no node is needed.

#![allow(clippy::unwrap_used)] // a test that panics has failed, which is what it is for

mod careless;
mod clients;
mod dice;
mod drivers;
mod frozen;
mod http;
mod http_cache;
mod http_isolation;
mod http_smuggling;
mod mysql;
mod mysql_isolation;
mod odd;
mod postgres;
mod postgres_faults;
mod postgres_hidden;
mod postgres_isolation;
mod postgres_measure;
mod postgres_raw;
mod postgres_server;
mod postgres_statements;
mod postgres_tls;
mod redis;
mod redis_ahead;
mod redis_isolation;
mod server;
mod stage;
mod tls;
