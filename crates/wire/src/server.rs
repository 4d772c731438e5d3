//! The server's side of HTTP/1 and HTTP/2, with limits that a hostile peer cannot stretch.
//!
//! Time limits are not set here: the owner of the connection watches it, which is cheaper than hyper's timer for each
//! request.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;

use crate::exec::LocalExec;

/// What a peer may make the server hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest request head in bytes (HTTP/1), largest decoded header list (HTTP/2). Above: 431.
    pub header_bytes: usize,
    /// Most header fields. Above: 431.
    pub headers: usize,
    /// HTTP/2 streams that one connection may have open.
    pub streams: u32,
    /// HTTP/2 streams that a peer may open and reset before they are looked at (CVE-2023-44487). Above: GOAWAY.
    pub pending_resets: usize,
    /// How often a silent HTTP/2 peer is asked whether it is there (PING).
    pub ping: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { header_bytes: 64 * 1024, headers: 100, streams: 256, pending_resets: 20, ping: Duration::from_secs(20) }
    }
}

/// HTTP/1.0 and 1.1. A peer that closes its sending half counts as gone, so that its request can be cancelled.
pub fn http1(limits: &Limits) -> http1::Builder {
    const HYPERS_OWN: usize = 100;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(limits.header_bytes.max(8192)).half_close(false);
    if limits.headers != HYPERS_OWN {
        builder.max_headers(limits.headers); // any number set, even this one, costs a fill or an allocation a request
    }
    builder
}

/// HTTP/2, over TLS or in clear text.
pub fn http2(limits: &Limits) -> http2::Builder<LocalExec> {
    const WINDOW: u32 = 1024 * 1024;
    let mut builder = http2::Builder::new(LocalExec);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(limits.pending_resets)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(4 * WINDOW)
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.ping);
    builder
}
