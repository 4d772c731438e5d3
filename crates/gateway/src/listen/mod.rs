//! Connections from callers: accepted on every thread, dispatched by protocol, timed out and
//! drained.
//!
//! A port has one socket per thread (`SO_REUSEPORT`). A connection stays on the thread that
//! accepted it.

mod accept;
mod accept_backoff;
mod accepted_socket;
mod client_connection;
mod client_socket;
mod client_transport;
mod conn_state;
mod connection;
mod connection_limit;
mod control_frames;
mod encrypted_socket;
mod http1;
mod http1_errors;
pub(crate) mod http3;
mod listener;
mod node_peer;
pub(crate) mod node_quic;
mod serving_thread;
mod stream_resets;
mod tracked_stream;

use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

use http::HeaderValue;
use nearpath_daemon::drain;
use nearpath_wire::server::HttpLimits;

pub use listener::{GatewayListener, Http3Listener, ListenerTls, NodeQuicListener};
pub(crate) use serving_thread::{ThreadSetup, run_thread};

use crate::context::WorkerContext;
use crate::request::ListenerZone;
use conn_state::ConnTable;

/// Context of one thread, with the connections that it serves.
pub(crate) struct ListenContext {
    pub worker: Rc<WorkerContext>,
    pub conn_table: ConnTable,
}

/// TCP port as served by one thread.
pub(crate) struct ListenPort {
    pub zone: ListenerZone,
    pub tls: Option<ListenerTls>,
    /// HTTP/3 alternative for `Alt-Svc` (RFC 7838).
    pub alt_svc: Option<HeaderValue>,
    pub limits: HttpLimits,
    pub tls_timeout: Duration,
    /// Maximum connections of this thread on this port.
    pub max_connections: usize,
    pub drain: drain::DrainWatch,
}

/// A socket of a port that one thread accepts from.
pub(crate) struct AcceptSetup {
    pub port: ListenPort,
    pub socket: TcpListener,
    /// Signals that another process accepts the port's connections, before the drain.
    pub handed_over: Option<drain::DrainWatch>,
}
