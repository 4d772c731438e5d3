//! Record of one call, which counts and logs it exactly once, when it is dropped.

use std::sync::Arc;

use http::{HeaderName, Method, Request};
use nearpath_types::Reason;
use tokio::time::Instant;

use crate::call_limit::CallPermit;
use crate::drain::DrainToken;
use crate::metrics::{MethodLabel, WatchdogMetrics};
use crate::process::output::TenantOutput;
use crate::stream_timeouts::BusyGuard;

const X_CALL_ID: HeaderName = HeaderName::from_static("x-call-id");
/// Status recorded for a caller that left before a status was known.
const CALLER_GONE: u16 = Reason::CallerGone.status();

/// Record of a call from its head to the last byte of its response; counted and logged when
/// dropped.
#[derive(Debug)]
pub(crate) struct CallCompletion {
    metrics: Arc<WatchdogMetrics>,
    method: MethodLabel,
    pub(crate) code: u16,
    pub(crate) started_at: Instant,
    log_line: Option<Box<CallLogLine>>,
    pub(crate) permit: Option<CallPermit>,
    _busy_guard: BusyGuard,
    _drain_token: DrainToken,
}

/// Fields of a call's log line.
#[derive(Debug)]
struct CallLogLine {
    method: Method,
    path: String,
    call_id: String,
    output: Arc<TenantOutput>,
}

impl CallLogLine {
    fn for_request<B>(request: &Request<B>, output: &Arc<TenantOutput>) -> Box<Self> {
        let call_id = request
            .headers()
            .get(X_CALL_ID)
            .and_then(|id| id.to_str().ok())
            .unwrap_or("none");
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        // Boxed, because few calls are logged and every record carries the field.
        Box::new(Self {
            method,
            path,
            call_id: call_id.to_owned(),
            output: Arc::clone(output),
        })
    }
}

impl CallCompletion {
    /// Begins a call. With `log`, its line is written there at the end.
    pub(crate) fn begin_call<B>(
        metrics: &Arc<WatchdogMetrics>,
        log: Option<&Arc<TenantOutput>>,
        request: &Request<B>,
        busy: BusyGuard,
        token: DrainToken,
    ) -> Self {
        metrics.begin_request();
        Self {
            metrics: Arc::clone(metrics),
            method: request.method().into(),
            // Replaced as soon as there is a response: a record dropped before belongs to a caller
            // that left.
            code: CALLER_GONE,
            started_at: Instant::now(),
            log_line: log.map(|output| CallLogLine::for_request(request, output)),
            permit: None,
            _busy_guard: busy,
            _drain_token: token,
        }
    }
}

impl Drop for CallCompletion {
    fn drop(&mut self) {
        let took = self.started_at.elapsed();
        self.metrics.end_request(self.code, self.method, took);
        // Only with `log_callid`: the gateway keeps the access log.
        let Some(line) = self.log_line.take() else {
            return;
        };
        let CallLogLine {
            method,
            path,
            call_id,
            output,
        } = *line;
        let text = format!(
            "{method} {path} - {} - {:.4}s [{call_id}]",
            self.code,
            took.as_secs_f64()
        );
        // Dropping cannot wait for a slow log pipe, so a task writes the line.
        tokio::spawn(async move { output.write_line(&text).await });
    }
}
