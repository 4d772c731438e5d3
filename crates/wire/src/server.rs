//! Server settings of HTTP/1 and HTTP/2, with limits that a hostile peer cannot exceed.
//!
//! Timeouts are not set here: the owner of the connection watches it, which is cheaper than a hyper
//! timer for each request.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;

use crate::local_executor::LocalExec;

/// Resources that a peer may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Maximum size of a request head (HTTP/1) or of the decoded header list (HTTP/2) in bytes.
    /// Above: 431.
    pub max_header_bytes: usize,
    /// Maximum number of header fields. Above: 431.
    pub max_headers: usize,
    /// Maximum number of open HTTP/2 streams of one connection.
    pub max_streams: u32,
    /// HTTP/2 streams that a peer may open and reset before they are processed (CVE-2023-44487).
    /// Above: GOAWAY.
    pub max_pending_resets: usize,
    /// Interval of PINGs to an idle HTTP/2 peer.
    pub ping_interval: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_header_bytes: 64 * 1024,
            max_headers: 100,
            max_streams: 256,
            max_pending_resets: 20,
            ping_interval: Duration::from_secs(20),
        }
    }
}

/// Settings for HTTP/1.0 and 1.1. A peer that closes its sending half counts as gone, so that its
/// request can be cancelled.
pub fn http1_builder(limits: &HttpLimits) -> http1::Builder {
    const HYPER_DEFAULT: usize = 100;
    let mut builder = http1::Builder::new();
    builder
        .max_buf_size(limits.max_header_bytes.max(8192))
        .half_close(false);
    if limits.max_headers != HYPER_DEFAULT {
        // any explicit number, even the default, costs an allocation for each request
        builder.max_headers(limits.max_headers);
    }
    builder
}

/// Settings for HTTP/2, over TLS or in clear text.
pub fn http2_builder(limits: &HttpLimits) -> http2::Builder<LocalExec> {
    const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
    let mut builder = http2::Builder::new(LocalExec);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
        // Above it hyper closes the connection, so a reset flood costs the peer its connection.
        .max_pending_accept_reset_streams(limits.max_pending_resets)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        // Four uploads can fill their windows; more share the connection's.
        .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping_interval);
    builder
}
