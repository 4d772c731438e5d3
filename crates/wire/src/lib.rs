//! HTTP/1, 2 and 3, TLS and QUIC as nearpath uses them: sockets, servers, clients and bodies.
//!
//! This crate does not know functions. The protocols are hyper's and rustls's. The crate holds
//! nearpath's settings in one place: limits against hostile peers ([`server`]), connections to
//! instances ([`client`]), certificates ([`tls`]), HTTP/3 for public clients ([`h3`]), ports that
//! threads share ([`sockets`]), closes that lose no response ([`lingering_close`]), the rules of one
//! HTTP hop ([`hop`]) and the files with a node's certificate ([`node_tls`]).
#![forbid(unsafe_code)]

pub mod body;
pub mod client;
pub mod h3;
pub mod hop;
pub mod identity;
pub mod lingering_close;
pub mod local_executor;
pub mod mtls;
pub mod node_tls;
pub mod not_run_header;
pub mod p2p_tls;
pub mod preface;
pub mod quic;
pub mod server;
pub mod sockets;
pub mod tls;
pub mod zero_rtt;

pub use body::{Body, BoxError};
pub use sockets::bind_tcp;
