//! Events for subscribers that run only on other nodes.
//!
//! A function publishes in the memory of its domain. The gateway takes the events that such subscribers
//! want (decision 107). It sends each to one node for each subscriber. An event is lost if its publisher
//! has too many under way, or if no node takes it.

mod event_limit;

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, CONTENT_LENGTH, HeaderMap, HeaderValue, TE, TRAILER};
use http::uri::PathAndQuery;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use nearpath_domain::trace::TRACEPARENT;
use nearpath_types::topic::MAX_REMOTE_EVENT_BYTES;
use nearpath_wire::hop::headers::{append_untrusted, strip_hop_headers};

use crate::context::WorkerContext;
use crate::function::FunctionEntry;
use crate::invoke::{FunctionHandle, Invocation, collect_body, http_request};
use crate::pipeline;
use crate::request::{ListenerZone, PeerInfo, X_TIMEOUT};
use crate::route;

use event_limit::EventLimit;

/// Maximum bytes of a response that is read, before it is dropped.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Maximum time for an event, as value of `X-Timeout`.
const EVENT_TIMEOUT: &str = "30s";
/// Maximum bytes of an event's path: with a function's name in front, it must fit into a URI.
const MAX_PATH_BYTES: usize = 32 * 1024;
/// Name of the protocol in the access log.
const PROTOCOL: &str = "event";

/// An event, as it goes to each subscriber.
struct PublishedEvent {
    publisher: Arc<FunctionEntry>,
    /// Address of the publishing instance.
    addr: IpAddr,
    topic: HeaderValue,
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// Sends the events of a domain to other nodes, until the node closes the endpoint's socket.
pub(crate) async fn forward_events(worker: Rc<WorkerContext>, endpoint: AsyncEndpoint) {
    let limit = Rc::new(EventLimit::default());
    while let Some(received) = endpoint.next_incoming().await {
        match PublishedEvent::read(&worker, &received) {
            Some(event) => send_to_subscribers(&worker, &limit, event),
            None => worker.totals.events.count_dropped(),
        }
    }
}

impl PublishedEvent {
    /// Reads an event, so that its slot of shared memory is free at once. `None` if its topic, method or
    /// path is invalid, its body too large, or its publisher was removed.
    fn read(worker: &WorkerContext, received: &ReceivedCall) -> Option<Self> {
        // The edge to the gateway permits no calls.
        let publisher = received.caller.function.as_ref();
        let publisher = worker.table.get(publisher.filter(|_| received.is_event)?)?;
        let instance = received.caller.instance;
        let addr = instance.and_then(|id| publisher.route().instance_addr(id));
        let (mut topic, mut method, mut path) = (None, Method::POST, "/".to_owned());
        let mut headers = HeaderMap::new();
        for field in received.head_fields().flatten() {
            match field.name {
                ":name" => topic = parse_topic(field.value),
                ":method" => method = parse_method(field.value)?,
                ":path" => path = parse_path(field.value)?,
                name => append_untrusted(&mut headers, name, field.value),
            }
        }
        limit_headers(&mut headers);
        if let Some(trace) = received.traceparent() {
            let trace = HeaderValue::try_from(trace).expect("digits and dashes");
            headers.insert(TRACEPARENT, trace);
        }
        let body = Bytes::copy_from_slice(&received.body);
        (body.len() <= MAX_REMOTE_EVENT_BYTES).then_some(Self {
            publisher,
            // An instance may publish before it is ready, and then has no address here.
            addr: addr.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            topic: topic?,
            method,
            path,
            headers,
            body,
        })
    }

    fn invocation(&self, subscriber: Arc<FunctionEntry>) -> Invocation {
        Invocation {
            function: FunctionHandle(subscriber),
            method: self.method.clone(),
            path: self.path.clone(),
            headers: self.headers.clone(),
            body: self.body.clone(),
            protocol: PROTOCOL,
        }
    }
}

/// Removes the fields with which a publisher would ask for more than an event: options of a hop, streams,
/// trailers, a time limit of its own.
fn limit_headers(headers: &mut HeaderMap) {
    strip_hop_headers(headers, false);
    for name in [CONTENT_LENGTH, ACCEPT, TE, TRAILER] {
        headers.remove(name);
    }
    headers.insert(X_TIMEOUT, HeaderValue::from_static(EVENT_TIMEOUT));
}

/// Parses the topic of an event. HTTP/1.1 would remove blanks at its ends.
fn parse_topic(value: &[u8]) -> Option<HeaderValue> {
    let is_plain = value == value.trim_ascii();
    is_plain.then(|| HeaderValue::from_bytes(value).ok())?
}

/// Parses the method of an event. A tunnel would bypass routing (RFC 9110 section 9.3.6).
fn parse_method(value: &[u8]) -> Option<Method> {
    let method = Method::from_bytes(value).ok()?;
    (method != Method::CONNECT).then_some(method)
}

/// Parses the path of an event; `None`: a request cannot have it. Its writer may be hostile.
fn parse_path(value: &[u8]) -> Option<String> {
    let path = PathAndQuery::try_from(value).ok()?;
    let is_valid = path.as_str().starts_with('/') && value.len() <= MAX_PATH_BYTES;
    is_valid.then(|| path.as_str().to_owned())
}

/// Starts to send an event to one node for each subscriber. None waits for another.
fn send_to_subscribers(worker: &Rc<WorkerContext>, limit: &Rc<EventLimit>, event: PublishedEvent) {
    let event = Rc::new(event);
    let topic = pipeline::topic_text(&event.topic);
    let mut subscribers = worker.table.remote_subscribers();
    subscribers.retain(|one| route::check_event(&event.publisher, topic, one).is_ok());
    for subscriber in subscribers {
        let totals = &worker.totals.events;
        // An event may be lost: it does not wait for a node that is away.
        if subscriber.route().remotes.is_empty() {
            totals.count_response(false);
            continue;
        }
        let Some(permit) = EventLimit::try_admit(limit, &event.publisher.id, &subscriber.id) else {
            totals.count_dropped();
            continue;
        };
        // No drain waits for events.
        let service = worker.count_service();
        let (context, event) = (worker.clone(), event.clone());
        worker.spawn(async move {
            send_to_subscriber(&context, &event, subscriber).await;
            drop((permit, service));
        });
    }
}

/// Sends an event to one node. A subscriber that sleeps is woken, as by a call.
async fn send_to_subscriber(
    worker: &Rc<WorkerContext>,
    event: &PublishedEvent,
    subscriber: Arc<FunctionEntry>,
) {
    let peer = PeerInfo::new(ListenerZone::Internal, event.addr, PROTOCOL);
    let request = http_request(event.invocation(subscriber));
    let (publisher, topic) = (event.publisher.clone(), event.topic.clone());
    let routed = pipeline::route_event(worker, &peer.into(), request, publisher, topic);
    let response = pipeline::answer_request(routed).await;
    let is_success = (200..400).contains(&response.status().as_u16());
    worker.totals.events.count_response(is_success);
    // Read to its end, if it is short: only then does the call have its completion record.
    collect_body(response.into_body(), MAX_RESPONSE_BYTES).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods_that_no_request_can_have_are_refused() {
        assert_eq!(parse_path(b"/a%20b?c").as_deref(), Some("/a%20b?c"));
        let long = vec![b'/'; MAX_PATH_BYTES + 1];
        for path in [&b"/a b"[..], b"a", b"", b"*", b"/\xff\0", &long] {
            assert_eq!(parse_path(path), None);
        }
        assert_eq!(parse_method(b"PUT"), Some(Method::PUT));
        for method in [&b"CONNECT"[..], b"A B", b""] {
            assert_eq!(parse_method(method), None);
        }
    }

    #[test]
    fn topics_that_no_field_carries_are_refused() {
        assert_eq!(parse_topic(b"a b/c").unwrap(), "a b/c");
        for topic in [&b" a"[..], b"a ", b"a\tb\t", b"a\x01b"] {
            assert_eq!(parse_topic(topic), None, "{topic:?}");
        }
    }
}
