//! Completion records: the end of a request is recorded exactly once, when its record is dropped.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderValue, Method, Request, Version};
use nearpath_domain::trace::{TRACEPARENT, TraceContext};
use nearpath_path::{Obstacle, Path, PathChoice};
use nearpath_types::instance_label::label_instance;
use nearpath_types::{NodeName, Reason};

use super::access_log::AccessLogLine;
use super::recorder::{CallingNode, CompletionRecorder};
use crate::function::{CallOrigin, EdgeCounters, EndedCall, EndpointId, FunctionEntry};
use crate::request::{PeerInfo, UploadProgress};

/// Status for callers that left before the response; nginx logs the same number.
const STATUS_CALLER_GONE: u16 = 499;

/// Bytes of a user agent that the log keeps: a client chooses its length.
const MAX_USER_AGENT_BYTES: usize = 256;

/// Record of an open request. It moves from the pipeline to the response body, and dropping it
/// ends the request. By default, the caller is taken to have left.
pub(crate) struct CompletionRecord {
    recorder: Rc<CompletionRecorder>,
    function: Option<Arc<FunctionEntry>>,
    /// Counters of the edge that permits the call; `None` for callers outside, other nodes and events.
    edge: Option<Arc<EdgeCounters>>,
    /// Other node from which the request came.
    from_node: Option<CallingNode>,
    started_at: Instant,
    /// Nanoseconds from the start to the end, where they are known before the end. Each open connection has
    /// room for some records, so this is no `Duration`.
    took_nanos: Option<NonZeroU64>,
    status: u16,
    reason: Option<Reason>,
    /// The function reported a failure of its own in `grpc-status`.
    has_grpc_fault: bool,
    /// Endpoint to which the request was sent last.
    pub endpoint: Option<EndpointId>,
    /// Bytes of the response body so far.
    pub bytes_out: u64,
    /// Bytes of a request body that arrived with its head.
    bytes_in: u64,
    upload_progress: Option<Rc<UploadProgress>>,
    path_choice: PathChoice,
    details: Option<Box<LogDetails>>,
}

/// Protocol of an adapted request that was not HTTP; an extension of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientProtocol(pub &'static str);

/// Details for the access log alone.
struct LogDetails {
    time: SystemTime,
    /// Time between arrival and admission.
    queue_wait: Duration,
    call_id: String,
    requested_name: String,
    caller: Option<String>,
    client: IpAddr,
    user_agent: Option<String>,
    trace_id: Option<String>,
    method: String,
    path: String,
    protocol: &'static str,
}

impl CompletionRecord {
    /// Starts the record of a request. `function` is its destination, `requested_name` the name
    /// in its path.
    pub(crate) fn start_request<B>(
        recorder: &Rc<CompletionRecorder>,
        peer: &PeerInfo,
        request: &Request<B>,
        function: Option<Arc<FunctionEntry>>,
        requested_name: &str,
    ) -> Self {
        let from_node = calling_node(recorder, peer);
        if let Some(function) = &function {
            function.tally.note_start(origin_of(from_node));
        }
        let details = || LogDetails::from_request(peer, request, requested_name);
        let mut record = Self::new(recorder, function, Instant::now(), details);
        record.from_node = from_node;
        record
    }

    /// Starts the record of a plain HTTP/1.1 request with `bytes_in` bytes of body. `header` finds
    /// a field by its name.
    pub(crate) fn start_plain<'a>(
        recorder: &Rc<CompletionRecorder>,
        peer: &PeerInfo,
        function: Arc<FunctionEntry>,
        (method, path): (&Method, &str),
        bytes_in: u64,
        arrived_at: Instant,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Self {
        let from_node = calling_node(recorder, peer);
        function.tally.note_start(origin_of(from_node));
        let details = || LogDetails {
            method: method.to_string(),
            path: path.to_owned(),
            ..LogDetails::unknown(peer, "HTTP/1.1").with_headers(header)
        };
        let mut plain = Self::new(recorder, Some(function), arrived_at, details);
        (plain.bytes_in, plain.from_node) = (bytes_in, from_node);
        plain
    }

    /// Starts the record of a request whose head could not be parsed.
    pub(crate) fn start_unreadable(
        recorder: &Rc<CompletionRecorder>,
        peer: &PeerInfo,
        protocol: &'static str,
    ) -> Self {
        let details = || LogDetails::unknown(peer, protocol);
        Self::new(recorder, None, Instant::now(), details)
    }

    fn new(
        recorder: &Rc<CompletionRecorder>,
        function: Option<Arc<FunctionEntry>>,
        started_at: Instant,
        details: impl FnOnce() -> LogDetails,
    ) -> Self {
        // Without a log, a request allocates none of these strings.
        let details = recorder.log.as_ref().map(|_| Box::new(details()));
        Self {
            recorder: recorder.clone(),
            function,
            edge: None,
            from_node: None,
            started_at,
            took_nanos: None,
            status: STATUS_CALLER_GONE,
            reason: Some(Reason::CallerGone),
            has_grpc_fault: false,
            endpoint: None,
            bytes_out: 0,
            bytes_in: 0,
            upload_progress: None,
            path_choice: PathChoice {
                path: Path::Http,
                obstacle: None,
            },
            details,
        }
    }

    /// Returns the time of arrival.
    pub(crate) fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Keeps the request out of the access log. Metrics count it.
    pub(crate) fn omit_from_log(&mut self) {
        self.details = None;
    }

    /// Sets the call id and the calling function for the access log.
    pub(crate) fn identify(&mut self, call_id: &[u8], caller: Option<&FunctionEntry>) {
        if let Some(details) = &mut self.details {
            details.call_id = String::from_utf8_lossy(call_id).into_owned();
            details.caller = caller.map(|caller| caller.name.to_string());
        }
    }

    /// Counts the request for the edge that permits it, too. Another node counts the calls that it passes on.
    pub(crate) fn count_for_edge(&mut self, edge: Arc<EdgeCounters>) {
        edge.note_start();
        self.edge = Some(edge);
    }

    /// Adds a wait for admission.
    pub(crate) fn add_queue_wait(&mut self, waited: Duration) {
        if let Some(details) = &mut self.details {
            details.queue_wait += waited;
        }
    }

    /// Sets the counter of the request body.
    pub(crate) fn set_upload(&mut self, upload_progress: Option<Rc<UploadProgress>>) {
        (self.upload_progress, self.bytes_in) = (upload_progress, 0);
    }

    /// Sets the path to the instance.
    pub(crate) fn set_path(&mut self, choice: PathChoice) {
        self.path_choice = choice;
    }

    /// Returns the path to the instance.
    pub(crate) fn path_choice(&self) -> PathChoice {
        self.path_choice
    }

    /// Marks the response head as sent. Without a later mark, the caller left before the end.
    pub(crate) fn mark_answered(&mut self, status: u16) {
        self.status = status;
    }

    /// Marks a gRPC response as failed by its status: the HTTP status is 200 all the same.
    pub(crate) fn mark_grpc_fault(&mut self) {
        self.has_grpc_fault = true;
    }

    /// Marks the response as complete.
    pub(crate) fn mark_finished(&mut self) {
        self.reason = None;
    }

    /// Sets the duration; otherwise the record's drop reads the clock.
    pub(crate) fn set_duration(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.took_nanos = NonZeroU64::new(nanos);
    }

    /// Marks the request as refused, with the status of the reason.
    pub(crate) fn mark_refused(&mut self, reason: Reason) {
        self.status = reason.status();
        self.reason = Some(reason);
    }

    /// Marks the response as truncated after its head.
    pub(crate) fn mark_truncated(&mut self, reason: Reason) {
        self.reason = Some(reason);
    }

    /// Returns the name of the node from which the request came.
    fn calling_node_name(&self) -> Option<String> {
        let name = self.recorder.calling_node_name(self.from_node?)?;
        Some(name.to_string())
    }

    /// Returns the instance to which the request was sent last, as users read it.
    fn instance_label(&self) -> Option<String> {
        match self.endpoint {
            Some(EndpointId::Instance(id)) => Some(label_instance(self.recorder.node.as_ref(), id)),
            _ => None,
        }
    }

    /// Returns the other node to which the request was sent last.
    pub(crate) fn node(&self) -> Option<&NodeName> {
        match &self.endpoint {
            Some(EndpointId::Node(name)) => Some(name),
            _ => None,
        }
    }

    fn write_record(&mut self) {
        let known = self
            .took_nanos
            .map(|nanos| Duration::from_nanos(nanos.get()));
        let took = known.unwrap_or_else(|| self.started_at.elapsed());
        // After the drain timeout, the gateway drops requests itself; their callers are still
        // there.
        if self.reason == Some(Reason::CallerGone) && self.recorder.is_cutting() {
            self.reason = Some(Reason::Draining);
        }
        if self.reason == Some(Reason::IdleTimeout) {
            self.log_silence();
        }
        match &self.function {
            // A refusal counts for its function if there is one, otherwise for the gateway.
            Some(function) => {
                let origin = origin_of(self.from_node);
                function.tally.note_end(origin, self.status, took);
                self.from_node
                    .inspect(|node| self.recorder.count_node_call(*node, self.status));
                self.reason
                    .inspect(|reason| function.tally.count_refusal(*reason));
            }
            None => drop(
                self.reason
                    .inspect(|reason| self.recorder.totals.refused.count_refusal(*reason)),
            ),
        }
        // Also for a refusal: the caller has called, whatever came of it.
        if let Some(edge) = &self.edge {
            edge.note_end(self.ended_call(took));
        }
        if let (Some(details), Some(log)) = (self.details.take(), &self.recorder.log) {
            log.write_line(self.log_line(*details, took));
        }
    }

    fn ended_call(&self, took: Duration) -> EndedCall {
        EndedCall {
            has_failed: self.has_failed(),
            took,
            request_bytes: self.request_bytes(),
            response_bytes: self.bytes_out,
        }
    }

    /// Returns whether the call failed: status 500 or above, no response, or one that was cut. A caller that
    /// leaves during the response has had one.
    fn has_failed(&self) -> bool {
        let is_cut = match self.reason {
            Some(Reason::CallerGone) => self.status == STATUS_CALLER_GONE,
            Some(reason) => reason.status() >= 500,
            None => false,
        };
        self.status >= 500 || self.has_grpc_fault || is_cut
    }

    /// Returns the bytes of the request body so far.
    fn request_bytes(&self) -> u64 {
        let uploaded = self.upload_progress.as_ref();
        self.bytes_in + uploaded.map_or(0, |body| body.byte_count())
    }

    /// Logs that a response was cut for its silence, which its caller sees as a broken connection.
    fn log_silence(&self) {
        let Some(function) = &self.function else {
            return;
        };
        if let Some(suppressed) = self.recorder.take_silence_notice(Instant::now()) {
            tracing::warn!(
                function = %function.name, instance = self.instance_label(), suppressed,
                "gateway: cut a silent response (annotation nearpath.io/idle-timeout)"
            );
        }
    }

    fn log_line(&self, details: LogDetails, took: Duration) -> AccessLogLine {
        AccessLogLine {
            time: details.time,
            call_id: details.call_id,
            function: self
                .function
                .as_ref()
                .map_or(details.requested_name, |function| function.name.to_string()),
            caller: details.caller,
            from_node: self.calling_node_name(),
            client: details.client,
            user_agent: details.user_agent,
            trace_id: details.trace_id,
            method: details.method,
            path: details.path,
            protocol: details.protocol,
            status: self.status,
            reason: self.reason.map(Reason::name),
            instance: self.instance_label(),
            node: self.node().map(|name| name.to_string()),
            bytes_in: self.request_bytes(),
            bytes_out: self.bytes_out,
            duration: took.as_secs_f64(),
            queue_wait: details.queue_wait.as_secs_f64(),
            via: self.path_choice.path.name(),
            obstacle: self
                .endpoint
                .as_ref()
                .and(self.path_choice.obstacle)
                .map(Obstacle::name),
        }
    }
}

/// Returns the node from which a request came. The name comes with the certificate, so callers of other zones
/// have none.
fn calling_node(recorder: &CompletionRecorder, peer: &PeerInfo) -> Option<CallingNode> {
    recorder.calling_node(peer.node.get()?)
}

fn origin_of(from_node: Option<CallingNode>) -> CallOrigin {
    match from_node {
        Some(_) => CallOrigin::Node,
        None => CallOrigin::Caller,
    }
}

impl Drop for CompletionRecord {
    fn drop(&mut self) {
        self.write_record();
    }
}

impl LogDetails {
    fn unknown(peer: &PeerInfo, protocol: &'static str) -> Self {
        Self {
            time: SystemTime::now(),
            queue_wait: Duration::ZERO,
            call_id: String::new(),
            requested_name: String::new(),
            caller: None,
            client: peer.addr,
            user_agent: None,
            trace_id: None,
            method: String::new(),
            path: String::new(),
            protocol,
        }
    }

    fn from_request<B>(peer: &PeerInfo, request: &Request<B>, requested_name: &str) -> Self {
        let protocol = match (request.extensions().get(), request.version()) {
            (Some(ClientProtocol(name)), _) => name,
            (None, Version::HTTP_10) => "HTTP/1.0",
            (None, Version::HTTP_2) => "HTTP/2",
            (None, Version::HTTP_3) => "HTTP/3",
            (None, _) => "HTTP/1.1",
        };
        let header = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
        Self {
            requested_name: requested_name.to_owned(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            ..Self::unknown(peer, protocol).with_headers(header)
        }
    }

    /// Takes the fields that identify the client's program and its trace.
    fn with_headers<'a>(mut self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Self {
        let shorten = |value: &[u8]| {
            let length = value.len().min(MAX_USER_AGENT_BYTES);
            String::from_utf8_lossy(&value[..length]).into_owned()
        };
        self.user_agent = header("user-agent").map(shorten);
        self.trace_id = header(TRACEPARENT)
            .and_then(TraceContext::parse_traceparent)
            .map(|trace| trace.id.iter().map(|byte| format!("{byte:02x}")).collect());
        self
    }
}
