//! HTTP/1, 2 and 3, TLS and QUIC as nearpath uses them: how a port is opened, how a server and a client speak, what a body is.
//!
//! Nothing here knows functions or instances. The protocols are hyper's and rustls's; this crate holds the settings that
//! nearpath gives them, in one place: limits against hostile peers ([`server_config`]), connections to instances ([`client_config`]),
//! certificates ([`tls`]), HTTP/3 for everybody ([`h3`]), sharing a port among threads ([`bind`]) and which headers end at a hop ([`hop_headers`]).
#![forbid(unsafe_code)]

pub mod body;
pub mod client;
pub mod h3;
pub mod hop_headers;
pub mod identity;
pub mod local_executor;
pub mod mtls;
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
