//! CoAP (RFC 7252) over UDP: `coap://HOST/function/NAME/path?query` calls a function as HTTP does.
//!
//! [`endpoint`] is the state machine, with [`blockwise`] transfers (RFC 7959), [`observers`] (RFC
//! 7641), [`deduplication`] and [`retransmission`] of messages, and [`address_proof`] (RFC 9175).
//! The task here has the socket and the clock, and calls the functions. It sleeps while there are
//! no requests.

mod address_proof;
mod blockwise;
mod deduplication;
mod endpoint;
pub(super) mod fuzz;
mod message;
mod observers;
mod retransmission;
mod status;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use coap_lite::ResponseType;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use nearpath_daemon::drain;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::invoke::{
    FunctionTable, Invocation, InvocationResponse, Invoker, LocalService, LocalTask, RemoteClient,
};
use nearpath_types::Reason;
use tokio::net::UdpSocket;
use uuid::Uuid;

use crate::limits::CoapLimits;
use crate::metrics::{CoapMetrics, MetricsCollector};
use crate::url_encoding::{encode_argument, encode_segment};
use endpoint::{CoapEffect, CoapEndpoint, CoapEvent, CoapResponse, MAX_DATAGRAM_BYTES};
use message::ResourceRequest;

/// Tells a function that the method was FETCH, which HTTP lacks.
const X_COAP_METHOD: HeaderName = HeaderName::from_static("x-coap-method");

/// A CoAP listener.
pub struct CoapListener {
    /// The socket that datagrams arrive on.
    pub socket: std::net::UdpSocket,
    /// Limits for each client.
    pub limits: CoapLimits,
}

/// The listener as a service of the gateway, on its last thread: MQTT has the first.
pub(crate) struct CoapService {
    listener: CoapListener,
    metrics: Arc<CoapMetrics>,
}

impl CoapService {
    /// Registers the protocol's counters.
    pub(crate) fn new(listener: CoapListener, registry: &MetricsRegistry) -> Self {
        let metrics = Arc::<CoapMetrics>::default();
        registry.with(|registry| {
            registry.register_collector(Box::new(MetricsCollector(metrics.clone())))
        });
        Self { listener, metrics }
    }
}

impl LocalService for CoapService {
    fn task_for_thread(&self, thread: usize, threads: usize) -> io::Result<Option<LocalTask>> {
        if thread + 1 != threads {
            return Ok(None); // one thread has all clients, so that their state needs no locks
        }
        let listener = CoapListener {
            socket: self.listener.socket.try_clone()?,
            limits: self.listener.limits.clone(),
        };
        let metrics = self.metrics.clone();
        Ok(Some(Box::new(move |invoker, drain| {
            Box::pin(serve(invoker, listener, metrics, drain))
        })))
    }
}

/// Serves until the drain begins, and then until every request has its response.
async fn serve(
    invoker: Invoker,
    listener: CoapListener,
    metrics: Arc<CoapMetrics>,
    drain: drain::DrainWatch,
) -> io::Result<()> {
    // tokio requires it, and `UdpSocket::from_std` does not set it.
    listener.socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(listener.socket)?;
    // A guessed message number could be acknowledged in another's name.
    let seed = Uuid::new_v4().as_u64_pair().0;
    let max_body_bytes = listener.limits.max_body_bytes;
    let endpoint = CoapEndpoint::new(listener.limits, seed, Instant::now());
    let (calls, effects) = (FuturesUnordered::new(), Vec::new());
    let task = CoapTask {
        invoker: invoker.clone(),
        socket,
        max_body_bytes,
        metrics,
        endpoint,
        calls,
        effects,
    };
    // A task of its own: this function returns at the drain, responses are sent after it.
    invoker.spawn(task.run(drain.clone()));
    drain.signaled().await;
    Ok(())
}

struct CoapTask {
    invoker: Invoker,
    socket: UdpSocket,
    max_body_bytes: usize,
    metrics: Arc<CoapMetrics>,
    endpoint: CoapEndpoint,
    calls: FuturesUnordered<LocalBoxFuture<'static, (u64, CoapResponse)>>,
    effects: Vec<CoapEffect>,
}

impl CoapTask {
    async fn run(mut self, drain: drain::DrainWatch) {
        // One byte more than the limit: a truncated datagram is then longer than it.
        let mut datagram = vec![0; MAX_DATAGRAM_BYTES + 1];
        loop {
            let next = self
                .endpoint
                .next_deadline()
                .map(tokio::time::Instant::from_std);
            let draining = drain.is_draining();
            if draining && self.calls.is_empty() {
                return;
            }
            tokio::select! {
                // No more requests from here on, but running calls and retransmissions go on.
                () = drain.signaled(), if !draining => continue,
                Some((call, answer)) = self.calls.next(), if !self.calls.is_empty() => {
                    self.endpoint.complete_call(call, answer, Instant::now(), &mut self.effects);
                }
                received = self.socket.recv_from(&mut datagram), if !draining => match received {
                    Ok((length, from)) => {
                        self.metrics.datagrams.increment();
                        self.endpoint.handle_datagram(from, &datagram[..length], Instant::now(), &mut self.effects);
                    }
                    // An error concerns one datagram, not the socket: the loop goes on.
                    Err(error) => tracing::debug!(%error, "coap: receive failed, continuing"),
                },
                () = sleep_until(next) => {}
            }
            // After every event: an acknowledgement may be due while datagrams keep arriving.
            self.endpoint.run_timers(Instant::now(), &mut self.effects);
            self.apply_effects().await;
        }
    }

    async fn apply_effects(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                // A datagram may be lost anyway.
                CoapEffect::Send(to, bytes) => drop(self.socket.send_to(&bytes, to).await),
                CoapEffect::Call(call, from, resource, body) => {
                    self.start_call(call, from, resource, body)
                }
                CoapEffect::Count(event) => self.count_event(event),
            }
        }
        self.metrics.observers.set(self.endpoint.observer_count());
    }

    fn count_event(&self, event: CoapEvent) {
        let metrics = &*self.metrics;
        match event {
            CoapEvent::Malformed => metrics.malformed.increment(),
            CoapEvent::Duplicate => metrics.duplicates.increment(),
            CoapEvent::Challenged => metrics.challenged.increment(),
            CoapEvent::Refused => metrics.refused.increment(),
            CoapEvent::Retransmitted => metrics.retransmissions.increment(),
            CoapEvent::Notified => metrics.notifications.increment(),
        }
    }

    fn start_call(&mut self, call: u64, from: SocketAddr, resource: ResourceRequest, body: Bytes) {
        let (invoker, max_body_bytes) = (self.invoker.clone(), self.max_body_bytes);
        let (method, is_fetch) = (resource.method.clone(), resource.is_fetch);
        match build_invocation(&invoker, resource, body) {
            Ok(invocation) => self.calls.push(Box::pin(async move {
                let client = RemoteClient::new(from.ip(), "coap");
                let answer = invoker.invoke(&client, invocation, max_body_bytes).await;
                (call, response_to(answer, &method, is_fetch))
            })),
            Err(answer) => self
                .calls
                // Through the same set as real calls, so that the endpoint has one way to finish.
                .push(Box::pin(std::future::ready((call, answer)))),
        }
    }
}

async fn sleep_until(next: Option<tokio::time::Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next).await,
        None => std::future::pending().await,
    }
}

/// Builds the invocation that a request asks for, or the response to one that needs none.
fn build_invocation(
    invoker: &Invoker,
    resource: ResourceRequest,
    body: Bytes,
) -> Result<Invocation, CoapResponse> {
    let refusal = |code| CoapResponse {
        code,
        format: None,
        body: Bytes::new(),
    };
    let path: Vec<&str> = resource.path.iter().map(String::as_str).collect();
    let (name, rest) = match &path[..] {
        ["function", name, rest @ ..] => (*name, rest),
        [".well-known", "core"] if resource.method == Method::GET => {
            return Err(resource_directory(&invoker.functions()));
        }
        // No function has the empty name, so the lookup below answers 4.04.
        _ => ("", &[][..]),
    };
    let Some(function) = invoker.functions().find_by_name(name) else {
        invoker.count_refused(Reason::NoFunction);
        return Err(refusal(ResponseType::NotFound));
    };
    let mut path = rest.iter().fold(String::new(), |path, segment| {
        path + "/" + &encode_segment(segment)
    });
    for (number, argument) in resource.query.iter().enumerate() {
        path.push(if number == 0 { '?' } else { '&' });
        path.push_str(&encode_argument(argument));
    }
    let mut headers = HeaderMap::new();
    for (name, format) in [(CONTENT_TYPE, resource.format), (ACCEPT, resource.accept)] {
        let Some(format) = format else { continue };
        let unknown = match name == ACCEPT {
            true => ResponseType::NotAcceptable,
            false => ResponseType::UnsupportedContentFormat,
        };
        let kind = status::content_type(format).ok_or_else(|| refusal(unknown))?;
        headers.insert(name, HeaderValue::from_static(kind));
    }
    if resource.is_fetch {
        headers.insert(X_COAP_METHOD, HeaderValue::from_static("FETCH"));
    }
    Ok(Invocation {
        function,
        method: resource.method,
        path,
        headers,
        body,
        protocol: "CoAP",
    })
}

/// Lists the functions in the link format of RFC 6690.
fn resource_directory(functions: &FunctionTable) -> CoapResponse {
    let mut links: Vec<_> = functions
        .list_functions()
        .iter()
        .map(|function| format!("</function/{}>", function.name()))
        .collect();
    // Sorted, so that equal directories have equal entity tags in block-wise transfers.
    links.sort_unstable();
    let body = links.join(",").into();
    CoapResponse {
        code: ResponseType::Content,
        format: status::content_format("application/link-format"),
        body,
    }
}

fn response_to(answer: InvocationResponse, method: &Method, is_fetch: bool) -> CoapResponse {
    let Some(body) = answer.body else {
        return CoapResponse {
            code: ResponseType::BadGateway,
            format: None,
            body: Bytes::new(),
        }; // larger than the limit, or cut
    };
    let kind = answer
        .headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let code = status::response_code(answer.status, method, is_fetch);
    CoapResponse {
        code,
        format: kind.and_then(status::content_format),
        body,
    }
}
