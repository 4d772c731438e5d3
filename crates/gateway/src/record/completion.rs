//! The end of a request, recorded exactly once: a value that records when it is dropped.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{Method, Request, Version};
use nearpath_path::{Obstacle, Path, PathChoice};
use nearpath_types::{InstanceId, Reason};

use super::access_log::Line;
use super::recorder::Recorder;
use crate::function::Function;
use crate::request::Flow;

/// What nginx and others log when the caller went away before it had an answer.
const GONE: u16 = 499;

/// One request that has not ended yet. It is handed from the path to the response's body; whoever drops it ends the
/// request. Unless told otherwise by then, the caller has gone.
pub(crate) struct Completion {
    recorder: Rc<Recorder>,
    function: Option<Arc<Function>>,
    started: Instant,
    status: u16,
    reason: Option<Reason>,
    /// How long it waited to be let in.
    pub queue_wait: Duration,
    /// Which instance it was sent to last.
    pub instance: Option<InstanceId>,
    /// Bytes of the response's body so far.
    pub bytes_out: u64,
    /// Bytes of a body that came with its head.
    bytes_in: u64,
    body: Option<Rc<Flow>>,
    way: PathChoice,
    details: Option<Box<Details>>,
}

/// What a request came as, when that was not HTTP; an extension of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protocol(pub &'static str);

/// What only the access log wants.
struct Details {
    time: SystemTime,
    call_id: String,
    asked: String,
    caller: Option<String>,
    method: String,
    path: String,
    protocol: &'static str,
}

impl Completion {
    /// A request that has just come. `function`: the one it is for; `asked`: as the path named it.
    pub(crate) fn start<B>(
        recorder: &Rc<Recorder>,
        request: &Request<B>,
        function: Option<Arc<Function>>,
        asked: &str,
    ) -> Self {
        if let Some(function) = &function {
            function.tally.start();
        }
        Self::new(recorder, function, || Details::of(request, asked))
    }

    /// A request for a function that came whole, over HTTP/1.1, with so many bytes of body.
    pub(crate) fn of_plain(
        recorder: &Rc<Recorder>,
        function: Arc<Function>,
        method: &Method,
        path: &str,
        bytes_in: u64,
    ) -> Self {
        function.tally.start();
        let details = || Details { method: method.to_string(), path: path.to_owned(), ..Details::unknown("HTTP/1.1") };
        let mut plain = Self::new(recorder, Some(function), details);
        plain.bytes_in = bytes_in;
        plain
    }

    /// A request of which not even the head could be read.
    pub(crate) fn unread(recorder: &Rc<Recorder>, protocol: &'static str) -> Self {
        Self::new(recorder, None, || Details::unknown(protocol))
    }

    fn new(recorder: &Rc<Recorder>, function: Option<Arc<Function>>, details: impl FnOnce() -> Details) -> Self {
        let details = recorder.log.as_ref().map(|_| Box::new(details()));
        Self {
            recorder: recorder.clone(),
            function,
            started: Instant::now(),
            status: GONE,
            reason: Some(Reason::CallerGone),
            queue_wait: Duration::ZERO,
            instance: None,
            bytes_out: 0,
            bytes_in: 0,
            body: None,
            way: PathChoice { path: Path::Http, obstacle: None },
            details,
        }
    }

    /// When it came.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// For the access log.
    pub(crate) fn identify(&mut self, call_id: &[u8], caller: Option<&Function>) {
        if let Some(details) = &mut self.details {
            details.call_id = String::from_utf8_lossy(call_id).into_owned();
            details.caller = caller.map(|caller| caller.name.to_string());
        }
    }

    /// Where the request body's bytes are counted.
    pub(crate) fn count_in(&mut self, body: Option<Rc<Flow>>) {
        (self.body, self.bytes_in) = (body, 0);
    }

    /// Which path it takes to the instance.
    pub(crate) fn went(&mut self, way: PathChoice) {
        self.way = way;
    }

    /// Which path it took.
    pub(crate) fn way(&self) -> PathChoice {
        self.way
    }

    /// The response's head is on its way; if nothing else is said, the caller leaves before its end.
    pub(crate) fn answered(&mut self, status: u16) {
        self.status = status;
    }

    /// The caller has its whole answer.
    pub(crate) fn finished(&mut self) {
        self.reason = None;
    }

    /// The platform refused it, with that reason's status.
    pub(crate) fn refused(&mut self, reason: Reason) {
        self.status = reason.status();
        self.reason = Some(reason);
    }

    /// The platform cut the response after its head had gone.
    pub(crate) fn cut(&mut self, reason: Reason) {
        self.reason = Some(reason);
    }

    fn record(&mut self) {
        let took = self.started.elapsed();
        if self.reason == Some(Reason::CallerGone) && self.recorder.is_cutting() {
            self.reason = Some(Reason::Draining);
        }
        match &self.function {
            Some(function) => {
                function.tally.end(self.status, took);
                self.reason.inspect(|reason| function.tally.refused.add(*reason));
            }
            None => drop(self.reason.inspect(|reason| self.recorder.totals.refused.add(*reason))),
        }
        if let (Some(details), Some(log)) = (self.details.take(), &self.recorder.log) {
            log.write(self.line(*details, took));
        }
    }

    fn line(&self, details: Details, took: Duration) -> Line {
        Line {
            time: details.time,
            call_id: details.call_id,
            function: self.function.as_ref().map_or(details.asked, |function| function.name.to_string()),
            caller: details.caller,
            method: details.method,
            path: details.path,
            protocol: details.protocol,
            status: self.status,
            reason: self.reason.map(Reason::name),
            instance: self.instance.map(|id| id.to_string()),
            bytes_in: self.bytes_in + self.body.as_ref().map_or(0, |body| body.bytes()),
            bytes_out: self.bytes_out,
            duration: took.as_secs_f64(),
            queue_wait: self.queue_wait.as_secs_f64(),
            via: self.way.path.name(),
            not_nearer: self.instance.and(self.way.obstacle).map(Obstacle::name),
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.record();
    }
}

impl Details {
    fn unknown(protocol: &'static str) -> Self {
        Self {
            time: SystemTime::now(),
            call_id: String::new(),
            asked: String::new(),
            caller: None,
            method: String::new(),
            path: String::new(),
            protocol,
        }
    }

    fn of<B>(request: &Request<B>, asked: &str) -> Self {
        let protocol = match (request.extensions().get(), request.version()) {
            (Some(Protocol(name)), _) => name,
            (None, Version::HTTP_10) => "HTTP/1.0",
            (None, Version::HTTP_2) => "HTTP/2",
            (None, Version::HTTP_3) => "HTTP/3",
            (None, _) => "HTTP/1.1",
        };
        Self {
            asked: asked.to_owned(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            ..Self::unknown(protocol)
        }
    }
}
