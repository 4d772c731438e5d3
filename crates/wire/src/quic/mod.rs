//! QUIC between parts of nearpath: calls on streams, with mutual TLS 1.3. `contract/quic.md`
//! defines the stream format.
//!
//! A caller has a [`Dialer`] for each thread. A [`CallerConnection`] is a connection to a worker,
//! [`CallerConnection::call`] makes a call. A worker passes the connections that its endpoint
//! accepts to a [`CallServer`]. [`config`] configures both, [`crate::zero_rtt`] saves handshakes.

mod accept;
mod body_writer;
mod call;
mod call_error;
mod caller;
mod caller_connection;
pub mod close_code;
pub mod config;
mod connection_limit;
mod datagram_socket;
mod dialer;
pub mod frame;
mod http_heads;
mod idle_watch;
mod response;
mod server;
mod server_connection;
mod stall_detector;
mod stream_body;
pub mod udp;
mod worker;

pub use body_writer::BodySendError;
pub use call::{CallTerms, EarlyData};
pub use call_error::QuicCallError;
pub use caller::CallerConfig;
pub use caller_connection::CallerConnection;
pub use connection_limit::MAX_CONNECTIONS;
pub use datagram_socket::open_endpoint;
pub use dialer::{Dialer, QuicDialError};
pub use response::QuicResponseBody;
pub use server::{CallServer, RefusalStats, ServedCall};
pub use stall_detector::wait_stalled;
pub use stream_body::{StreamBody, StreamBodyError};
pub use worker::{QuicWorker, QuicWorkerError};
