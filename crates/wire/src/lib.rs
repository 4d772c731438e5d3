//! HTTP/1, 2 and 3, TLS and QUIC as nearpath uses them: how a port is opened, how a server and a client speak, what a body is.
//!
//! Nothing here knows functions or instances. The protocols are hyper's and rustls's; this crate holds the settings that
//! nearpath gives them, in one place: limits against hostile peers ([`server`]), connections to instances ([`client`]),
//! certificates ([`tls`]), HTTP/3 for everybody ([`h3`]), sharing a port among threads ([`bind`]) and which headers end at a hop ([`hop`]).
#![forbid(unsafe_code)]

pub mod bind;
pub mod body;
pub mod client;
pub mod early;
pub mod exec;
pub mod h3;
pub mod hop;
pub mod identity;
pub mod mutual;
pub mod pair;
pub mod quic;
pub mod replay;
pub mod server;
pub mod tls;
pub mod unseen;

pub use bind::bind;
pub use body::{Body, BoxError};
