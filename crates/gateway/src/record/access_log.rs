//! Access log: one JSON line per request, written by its own thread.
//!
//! Serving threads never wait for the disk. When the writer falls behind, lines are dropped and
//! counted.

use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use nearpath_types::status::rfc3339;
use serde::Serialize;

use super::totals::GatewayTotals;

/// Maximum number of lines that wait for the writer.
const MAX_WAITING_LINES: usize = 8192;

/// Access-log line of one request. Times are RFC 3339 in UTC, durations are in seconds.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it; docs/operating describes them for operators
pub(crate) struct AccessLogLine {
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    pub call_id: String,
    pub function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Other node from which the request came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_node: Option<String>,
    pub client: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    pub method: String,
    pub path: String,
    pub protocol: &'static str,
    pub status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Other node that delivered the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub duration: f64,
    pub queue_wait: f64,
    /// Path of the call between gateway and instance.
    pub via: &'static str,
    /// Obstacle to a shorter path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<&'static str>,
}

/// Sender of access-log lines. Dropping the last clone ends the writer after it has written all
/// lines.
#[derive(Debug, Clone)]
pub(crate) struct AccessLog {
    lines: SyncSender<AccessLogLine>,
    totals: Arc<GatewayTotals>,
}

impl AccessLog {
    /// Starts the writer thread `access-log`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start_writer(
        out: Box<dyn Write + Send>,
        totals: Arc<GatewayTotals>,
    ) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(MAX_WAITING_LINES);
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_lines(out, &waiting))?;
        Ok(Self { lines, totals })
    }

    /// Queues a line, or counts it as lost.
    pub(crate) fn write_line(&self, line: AccessLogLine) {
        // Never blocking: a full disk must not stop requests.
        if self.lines.try_send(line).is_err() {
            self.totals.log_lines_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_lines(out: Box<dyn Write + Send>, lines: &Receiver<AccessLogLine>) {
    let mut out = BufWriter::with_capacity(64 * 1024, out);
    while let Ok(first) = lines.recv() {
        // All waiting lines in one batch, so that a burst costs one flush.
        let batch = std::iter::once(first).chain(lines.try_iter());
        let written = batch.into_iter().try_for_each(|line| {
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")
        });
        // The writer goes on: a disk that was full may have room for the next batch.
        if let Err(error) = written.and_then(|()| out.flush()) {
            tracing::warn!(%error, "access log: write failed, lines were lost");
        }
    }
}
