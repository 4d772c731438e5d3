//! Adapters of protocols whose used connections can be proved clean, so that they serve the next client.
//!
//! An adapter is a function `serve(client, visit)`, one future a client: it reads what the client says, has a backend do it, and gives the backend back
//! only when the protocol itself has shown that nothing of this client is left in it. What it cannot prove it closes. The client comes with `TCP_NODELAY`: its
//! listener had it.
#![forbid(unsafe_code)]

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

pub use context::{ClientContext, ClientInstance};
