//! Connections from callers: accepted on every thread, told apart by protocol, watched, and drained.
//!
//! A port has one socket a thread (`SO_REUSEPORT`); a connection lives and dies on the thread that accepted it.

mod accept;
mod accept_backoff;
mod client_requests;
mod client_socket;
mod conn_state;
mod connection;
mod http1;
mod http1_errors;
pub(crate) mod http3;
mod listener;
mod stream_resets;
mod thread;
mod tracked_stream;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use nearpath_daemon::drain;
use nearpath_wire::server::Limits;

pub use listener::{Http3, Listener};
pub(crate) use thread::{Thread, run};

use crate::context::WorkerContext;
use crate::request::Zone;
use conn_state::Lives;

/// One thread's context, and the connections that it serves.
pub(crate) struct ListenContext {
    pub worker: Rc<WorkerContext>,
    pub connections: Lives,
}

/// A port as one thread serves it.
pub(crate) struct Port {
    pub zone: Zone,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Where the same is served over HTTP/3, as `Alt-Svc` says it (RFC 7838).
    pub alt_svc: Option<HeaderValue>,
    pub limits: Limits,
    pub tls_timeout: Duration,
    /// Connections that this thread may have on this port.
    pub connections: usize,
    pub drain: drain::Watch,
}

impl Port {
    fn is_draining(&self) -> bool {
        self.drain.is_draining()
    }
}
