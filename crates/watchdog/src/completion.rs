//! The record of one call, which counts and logs it exactly once, when it is dropped.

use std::sync::Arc;

use http::{HeaderName, Method, Request};
use nearpath_types::Reason;
use tokio::time::Instant;

use crate::drain::Open;
use crate::inflight::Permit;
use crate::metrics::{MethodLabel, Metrics};
use crate::patience::BusyGuard;
use crate::process::output::Output;

const X_CALL_ID: HeaderName = HeaderName::from_static("x-call-id");
/// The status that stands for a caller who left before there was one.
const CALLER_GONE: u16 = Reason::CallerGone.status();

/// One call from its head to the last byte of its answer; counted and logged when dropped.
#[derive(Debug)]
pub(crate) struct Completion {
    metrics: Arc<Metrics>,
    method: MethodLabel,
    pub(crate) code: u16,
    pub(crate) began: Instant,
    line: Option<Box<Line>>,
    pub(crate) permit: Option<Permit>,
    _busy: BusyGuard,
    _open: Open,
}

/// What the log says of a call.
#[derive(Debug)]
struct Line {
    method: Method,
    path: String,
    call_id: String,
    output: Arc<Output>,
}

impl Line {
    fn of<B>(request: &Request<B>, output: &Arc<Output>) -> Box<Self> {
        let call_id = request.headers().get(X_CALL_ID).and_then(|id| id.to_str().ok()).unwrap_or("none");
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        Box::new(Self { method, path, call_id: call_id.to_owned(), output: Arc::clone(output) })
    }
}

impl Completion {
    /// Begins a call. With `log`, a line goes there at its end.
    pub(crate) fn begin<B>(
        metrics: &Arc<Metrics>,
        log: Option<&Arc<Output>>,
        request: &Request<B>,
        busy: BusyGuard,
        open: Open,
    ) -> Self {
        metrics.begin();
        Self {
            metrics: Arc::clone(metrics),
            method: request.method().into(),
            code: CALLER_GONE,
            began: Instant::now(),
            line: log.map(|output| Line::of(request, output)),
            permit: None,
            _busy: busy,
            _open: open,
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.metrics.end(self.code, self.method, took);
        let Some(line) = self.line.take() else { return };
        let Line { method, path, call_id, output } = *line;
        let text = format!("{method} {path} - {} - {:.4}s [{call_id}]", self.code, took.as_secs_f64());
        tokio::spawn(async move { output.line(&text).await });
    }
}
