//! Connections from callers: accepted on every thread, told apart by protocol, watched, and drained.
//!
//! A port has one socket a thread (`SO_REUSEPORT`); a connection lives and dies on the thread that accepted it.

mod accept;
mod accept_backoff;
mod client_connection;
mod client_socket;
mod conn_state;
mod connection;
mod http1;
mod http1_errors;
pub(crate) mod http3;
mod listener;
mod serving_thread;
mod stream_resets;
mod tracked_stream;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use nearpath_daemon::drain;
use nearpath_wire::server::HttpLimits;

pub use listener::{GatewayListener, Http3Listener};
pub(crate) use serving_thread::{ThreadSetup, run_thread};

use crate::context::WorkerContext;
use crate::request::ListenerZone;
use conn_state::ConnTable;

/// One thread's context, and the connections that it serves.
pub(crate) struct ListenContext {
    pub worker: Rc<WorkerContext>,
    pub conn_table: ConnTable,
}

/// A port as one thread serves it.
pub(crate) struct ListenPort {
    pub zone: ListenerZone,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Where the same is served over HTTP/3, as `Alt-Svc` says it (RFC 7838).
    pub alt_svc: Option<HeaderValue>,
    pub limits: HttpLimits,
    pub tls_timeout: Duration,
    /// Connections that this thread may have on this port.
    pub max_connections: usize,
    pub drain: drain::DrainWatch,
}

impl ListenPort {
    fn is_draining(&self) -> bool {
        self.drain.is_draining()
    }
}
