//! Protocol adapters whose used connections can be proven clean, so that they serve the next
//! client.
//!
//! Each adapter exports `serve(client, context)`, one future per client. The adapter reads
//! requests, runs them on a backend, and returns the backend to the pool. The backend goes back
//! only after the protocol itself has shown that nothing of this client is left in it. Otherwise
//! the adapter closes the backend. The listener has set `TCP_NODELAY` on the client's socket.
#![forbid(unsafe_code)]

pub mod client_instance;
pub mod context;
pub mod failed_writes;
pub mod http;
pub mod lru;
pub mod mysql;
pub mod postgres;
pub mod prefetch;
pub mod redis;
pub mod relay;
pub mod tls_tunnel;

pub use client_instance::ClientInstance;
pub use context::ClientContext;
