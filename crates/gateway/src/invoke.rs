//! Invocations for protocols other than HTTP, on the path that HTTP requests take.
//!
//! The gateway itself speaks HTTP only. A crate for another protocol implements [`LocalService`]:
//! each of its tasks runs on one serving thread and calls functions through the [`Invoker`] of
//! that thread.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use nearpath_daemon::drain;
use nearpath_types::chain_status::EdgeStatus;
use nearpath_types::{FunctionId, FunctionPolicy, InstanceId, Reason};
use tokio::sync::{Notify, watch};

use crate::context::WorkerContext;
use crate::deliver::ResponseContent;
pub use crate::function::RemotePath;
use crate::function::{FunctionEntry, RoutingTable};
use crate::pipeline;
use crate::record::ClientProtocol;
use crate::request::{ListenerZone, PeerInfo};

/// A service for another protocol on the gateway's threads.
pub trait LocalService: Send + Sync + 'static {
    /// Returns the task for thread number `thread` of `threads`, or `None` if the service does
    /// not run there.
    ///
    /// # Errors
    /// When a socket cannot be shared with that thread.
    fn task_for_thread(&self, thread: usize, threads: usize) -> io::Result<Option<LocalTask>>;
}

/// Starts a service on the calling thread. The future accepts clients until the drain begins.
pub type LocalTask =
    Box<dyn FnOnce(Invoker, drain::DrainWatch) -> LocalBoxFuture<'static, io::Result<()>> + Send>;

/// A function that can be called.
#[derive(Debug, Clone)]
pub struct FunctionHandle(pub(crate) Arc<FunctionEntry>);

impl FunctionHandle {
    /// The function's identity.
    pub fn id(&self) -> &FunctionId {
        &self.0.id
    }

    /// `NAME.NAMESPACE`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Requests that have started.
    pub fn started_requests(&self) -> u64 {
        self.0.tally.started_count()
    }

    /// Requests that this node's instances have or that wait for one. Those that other nodes have are not
    /// counted.
    pub fn local_requests(&self) -> u32 {
        let route = self.0.route();
        let at_nodes = route.remotes.iter().filter_map(|one| one.request_count());
        let open = self.0.tally.open_count();
        // Both counts change meanwhile, so the difference may be below zero for a moment.
        at_nodes.fold(open, u32::saturating_sub)
    }

    /// Notifies `listener` of the next request, once; a request at the same time may notify it, too.
    /// All calls must have the same listener.
    pub fn notify_next_request(&self, listener: &Arc<Notify>) {
        self.0.tally.notify_next_request(listener);
    }

    /// Settings from the last snapshot.
    pub fn policy(&self) -> Arc<FunctionPolicy> {
        self.0.route().policy.clone()
    }
}

/// The functions of the last snapshot.
#[derive(Debug, Clone)]
pub struct FunctionTable(pub(crate) Arc<RoutingTable>);

impl FunctionTable {
    /// Finds a function by name; without a namespace, in the default namespace.
    pub fn find_by_name(&self, name: &str) -> Option<FunctionHandle> {
        self.0.find_by_name(name).map(FunctionHandle)
    }

    /// Lists the functions that declare topics, in order.
    pub fn list_with_topics(&self) -> Vec<FunctionHandle> {
        let functions = self.0.functions_with_topics();
        functions.into_iter().map(FunctionHandle).collect()
    }

    /// Lists all functions, in order.
    pub fn list_functions(&self) -> Vec<FunctionHandle> {
        self.0.functions().into_iter().map(FunctionHandle).collect()
    }

    /// Returns the completed requests for a function since it was first published. Requests from
    /// other nodes and calls past the gateway are not included.
    pub fn invocations(&self, id: &FunctionId) -> u64 {
        let function = self.0.get(id);
        function.map_or(0, |function| function.tally.received().ended_count())
    }

    /// Returns the calls of each declared edge that came by way of this gateway, from instances of this
    /// node. Edges without calls, and those to functions that do not exist, have no row.
    pub fn edge_calls(&self) -> Vec<EdgeStatus> {
        let functions = self.0.functions();
        let rows = functions.iter().flat_map(|caller| {
            let route = caller.route();
            let rows = route.edges().filter_map(|(callee, tally)| {
                // A declared callee that is removed keeps its tally, in case it comes back.
                let callee = self.0.get(callee)?;
                Some(EdgeStatus {
                    chain: route.policy.chain.clone().unwrap_or_default(),
                    namespace: caller.id.namespace.to_string(),
                    caller: caller.name.to_string(),
                    callee: callee.name.to_string(),
                    ..tally.read_totals()?
                })
            });
            rows.collect::<Vec<_>>()
        });
        rows.collect()
    }

    /// Returns the path of each function to each other node that may be called for it.
    pub fn remote_paths(&self) -> Vec<RemotePath> {
        self.0.remote_paths()
    }

    /// Returns the requests for a function since it was first published that had a status below 400.
    pub fn answered(&self, id: &FunctionId) -> u64 {
        let function = self.0.get(id);
        function.map_or(0, |function| function.tally.answered_count())
    }

    /// Finds a function by its id.
    pub fn get(&self, id: &FunctionId) -> Option<FunctionHandle> {
        self.0.get(id).map(FunctionHandle)
    }

    /// Returns the requests that have started, over all current functions.
    pub fn started_requests(&self) -> u64 {
        // A removed function takes its counter with it, so this sum can fall.
        let started = self.0.functions();
        let started = started.iter().map(|one| one.tally.started_count());
        started.fold(0, u64::saturating_add)
    }

    /// Waits until no request is open at an instance that a snapshot has withdrawn. May take as long
    /// as the longest request.
    pub async fn wait_requests_ended(&self, id: InstanceId) {
        self.0.wait_requests_ended(id).await;
    }

    /// Notifies of each snapshot.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// A client of a [`LocalService`], as functions and completion records see it.
#[derive(Debug, Clone)]
pub struct RemoteClient(Rc<PeerInfo>);

impl RemoteClient {
    /// Creates a client at `addr`. Functions find `proto` in `X-Forwarded-Proto`.
    pub fn new(addr: IpAddr, proto: &'static str) -> Self {
        Self(Rc::new(PeerInfo::new(ListenerZone::Public, addr, proto)))
    }
}

/// A request for a function, read from another protocol.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// The function to call.
    pub function: FunctionHandle,
    /// The HTTP method that the function sees.
    pub method: Method,
    /// The function's own path and query, percent-encoded; begins with `/` unless it is empty.
    pub path: String,
    /// Header fields in addition to those that the gateway adds.
    pub headers: HeaderMap,
    /// The payload.
    pub body: Bytes,
    /// Name of the protocol in the access log.
    pub protocol: &'static str,
}

/// Response of the function, or refusal of the platform.
#[derive(Debug, Clone)]
pub struct InvocationResponse {
    /// The HTTP status.
    pub status: u16,
    /// The response's header fields.
    pub headers: HeaderMap,
    /// Complete body; `None` if it exceeded the limit or was cut.
    pub body: Option<Bytes>,
}

/// Invokes functions from one gateway thread.
#[derive(Clone)]
pub struct Invoker(Rc<WorkerContext>);

impl Invoker {
    pub(crate) fn new(worker: Rc<WorkerContext>) -> Self {
        Self(worker)
    }

    /// The functions that can be called.
    pub fn functions(&self) -> FunctionTable {
        FunctionTable(self.0.table.clone())
    }

    /// Runs a task on this thread; the drain waits for it.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn(task);
    }

    /// Counts a request that was refused before a function was known.
    pub fn count_refused(&self, reason: Reason) {
        self.0.totals.refused.count_refusal(reason);
    }

    /// Calls a function and collects its response, up to `limit` bytes of body.
    pub async fn invoke(
        &self,
        client: &RemoteClient,
        invocation: Invocation,
        limit: usize,
    ) -> InvocationResponse {
        let (request, function, path_offset) = http_request(invocation);
        let response = pipeline::answer_request(pipeline::route_buffered(
            &self.0,
            &client.0,
            request,
            function,
            path_offset,
        ))
        .await;
        let (head, content) = response.into_parts();
        let body = collect_body(content, limit).await;
        InvocationResponse {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        }
    }
}

pub(crate) fn http_request(invocation: Invocation) -> (Request<Bytes>, Arc<FunctionEntry>, usize) {
    let function = invocation.function.0;
    let prefix = format!("/function/{}", function.name);
    let path_offset = prefix.len();
    let mut request = Request::new(invocation.body);
    // The access log and the path offset expect the path that an HTTP caller would have used.
    *request.uri_mut() = format!("{prefix}{}", invocation.path)
        .try_into()
        .expect("an encoded path is a path");
    *request.method_mut() = invocation.method;
    *request.headers_mut() = invocation.headers;
    // The body limit of the policy is compared with this field before anything is sent.
    if !request.body().is_empty() {
        let length = request.body().len();
        request.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    request
        .extensions_mut()
        .insert(ClientProtocol(invocation.protocol));
    (request, function, path_offset)
}

/// Collects the whole body. Above the limit it cuts the response, so that the function stops
/// sending.
pub(crate) async fn collect_body(mut content: ResponseContent, limit: usize) -> Option<Bytes> {
    let mut first: Option<Bytes> = None;
    let mut more = BytesMut::new();
    while let Some(frame) = content.frame().await {
        let Ok(data) = frame.ok()?.into_data() else {
            continue;
        };
        // Checked before the copy, so that a response can never hold more memory than the limit.
        if first.as_ref().map_or(0, Bytes::len) + more.len() + data.len() > limit {
            content.cut_short(Reason::AnswerTooLarge);
            return None;
        }
        match &first {
            None => first = Some(data), // most bodies are one frame, which is not copied
            Some(_) => more.extend_from_slice(&data),
        }
    }
    let first = first.unwrap_or_default();
    if more.is_empty() {
        return Some(first);
    }
    Some([&first[..], &more].concat().into())
}
