//! Events for subscribers that run only on other nodes.
//!
//! A function publishes in the memory of its domain. The gateway takes the events that such subscribers
//! want (decision 107). It sends each to one node for each subscriber. An event is lost if its publisher
//! has too many under way, or if no node takes it.

mod event_limit;
mod event_totals;

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use nearpath_domain::endpoint::BodyReader;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use nearpath_domain::trace::TRACEPARENT;
use nearpath_wire::hop::headers::{append_untrusted, strip_hop_headers};

use crate::context::WorkerContext;
use crate::function::FunctionEntry;
use crate::invoke::{FunctionHandle, Invocation, http_request};
use crate::pipeline;
use crate::request::{ListenerZone, PeerInfo};
use crate::route;

use event_limit::EventLimit;
pub(crate) use event_totals::EventTotals;

/// Maximum bytes of an event's body between nodes. A call carries more.
pub(crate) const MAX_EVENT_BYTES: usize = 1 << 20;
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
        // Only events arrive: the edge to the gateway permits no calls.
        let publisher = received.caller.function.as_ref();
        // The node names the publisher. The table lacks a function that was removed.
        let Some(publisher) = publisher.and_then(|id| worker.table.get(id)) else {
            worker.totals.events.count_dropped();
            continue;
        };
        let Some(permit) = EventLimit::try_admit(&limit, &publisher.id) else {
            worker.totals.events.count_dropped();
            continue;
        };
        let context = worker.clone();
        worker.spawn(async move {
            match PublishedEvent::read(received, publisher).await {
                Some(event) => send_to_subscribers(&context, event).await,
                None => context.totals.events.count_dropped(),
            }
            drop(permit);
        });
    }
}

impl PublishedEvent {
    /// Reads an event. `None` if its topic, method or path is invalid, or its body is cut or exceeds
    /// [`MAX_EVENT_BYTES`].
    async fn read(mut received: ReceivedCall, publisher: Arc<FunctionEntry>) -> Option<Self> {
        let instance = received.caller.instance;
        let addr = instance.and_then(|id| publisher.route().instance_addr(id));
        let (mut topic, mut method, mut path) = (None, Method::POST, "/".to_owned());
        let mut headers = HeaderMap::new();
        for field in received.head_fields().flatten() {
            match field.name {
                ":name" => topic = HeaderValue::from_bytes(field.value).ok(),
                ":method" => method = parse_method(field.value)?,
                ":path" => path = parse_path(field.value)?,
                name => append_untrusted(&mut headers, name, field.value),
            }
        }
        // Another process wrote the fields, so hop-by-hop headers may be among them.
        strip_hop_headers(&mut headers, false);
        headers.remove(CONTENT_LENGTH); // that of the body which was read is set later
        if let Some(trace) = received.traceparent() {
            let trace = HeaderValue::try_from(trace).expect("digits and dashes");
            headers.insert(TRACEPARENT, trace);
        }
        let first: Bytes = std::mem::take(&mut received.body).into();
        let body = read_body(first, received.take_reader()).await?;
        Some(Self {
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

/// Reads the whole body of an event; `None`: it was cut, or has more than [`MAX_EVENT_BYTES`].
async fn read_body(first: Bytes, rest: Option<BodyReader>) -> Option<Bytes> {
    let Some(rest) = rest else {
        return (first.len() <= MAX_EVENT_BYTES).then_some(first);
    };
    let mut body = BytesMut::from(&first[..]);
    while let Some(part) = rest.next_part().await {
        let part = part.ok()?;
        if body.len() + part.len() > MAX_EVENT_BYTES {
            return None;
        }
        body.extend_from_slice(&part);
    }
    Some(body.freeze())
}

/// Sends an event to one node for each subscriber. One that sleeps is woken, as by a call.
async fn send_to_subscribers(worker: &Rc<WorkerContext>, event: PublishedEvent) {
    let topic = pipeline::topic_text(&event.topic);
    let mut subscribers = worker.table.remote_subscribers();
    subscribers.retain(|one| route::check_event(&event.publisher, topic, one).is_ok());
    let peer = PeerInfo::new(ListenerZone::Internal, event.addr, PROTOCOL);
    let peer = Rc::new(peer);
    let sends = subscribers.into_iter().map(|subscriber| {
        let request = http_request(event.invocation(subscriber));
        let (publisher, topic) = (event.publisher.clone(), event.topic.clone());
        let routed = pipeline::route_event(worker, &peer, request, publisher, topic);
        pipeline::answer_request(routed)
    });
    for response in join_all(sends).await {
        let status = response.status();
        worker
            .totals
            .events
            .count_response(status < StatusCode::BAD_REQUEST);
        // Read to its end: only then does the call have its completion record.
        let mut body = response.into_body();
        while let Some(Ok(_)) = body.frame().await {}
    }
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
}
