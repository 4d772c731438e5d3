//! The adapters against real servers and unmodified programs, through a listener on loopback. No
//! node is needed.

#![allow(clippy::unwrap_used)] // a test that panics has failed, which is what it is for

mod client_tls;
mod clients;
mod drivers;
mod fixture;
mod frozen_client;
mod http;
mod http_cache;
mod http_isolation;
mod http_smuggling;
mod mysql;
mod mysql_isolation;
mod postgres;
mod postgres_client_tls;
mod postgres_faults;
mod postgres_implicit_state;
mod postgres_isolation;
mod postgres_measure;
mod postgres_parameters;
mod postgres_raw;
mod postgres_server;
mod postgres_statements;
mod postgres_tls;
mod redis;
mod redis_cache_writes;
mod redis_isolation;
mod scripted_server;
mod server;
mod tls;
mod unclean_adapter;
