//! Events for functions that run on other nodes alone.
//!
//! A function publishes in the memory of its domain. For subscribers on other nodes its event goes to the
//! gateway (decision 107), which sends it to one node for each of them. An event may be lost: where the
//! gateway has too many of its publisher, or no node takes it.

mod event_places;
mod event_totals;

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use nearpath_domain::endpoint::BodyReader;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use nearpath_domain::trace::{TRACEPARENT, TraceContext};

use crate::context::WorkerContext;
use crate::function::FunctionEntry;
use crate::invoke::{FunctionHandle, Invocation, http_request};
use crate::pipeline;
use crate::request::{ListenerZone, PeerInfo};
use crate::route;

use event_places::EventPlaces;
pub(crate) use event_totals::EventTotals;

/// Maximum bytes of an event for another node.
pub(crate) const MAX_EVENT_BYTES: usize = 1 << 20;
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
    let places = Rc::new(EventPlaces::default());
    while let Some(received) = endpoint.next_incoming().await {
        let publisher = received.caller.function.as_ref();
        // The node names the publisher; one that the table does not have is gone.
        let Some(publisher) = publisher.and_then(|id| worker.table.get(id)) else {
            worker.totals.events.count_dropped();
            continue;
        };
        let Some(place) = EventPlaces::take(&places, &publisher.id) else {
            worker.totals.events.count_dropped();
            continue;
        };
        let context = worker.clone();
        worker.spawn(async move {
            match PublishedEvent::read(received, publisher).await {
                Some(event) => send_to_subscribers(&context, event).await,
                None => context.totals.events.count_dropped(),
            }
            drop(place);
        });
    }
}

impl PublishedEvent {
    /// Reads an event; `None`: it has no valid topic, or its body is too large or was cut.
    async fn read(mut received: ReceivedCall, publisher: Arc<FunctionEntry>) -> Option<Self> {
        let instance = received.caller.instance;
        let addr = instance.and_then(|id| publisher.route().instance_addr(id));
        let (mut topic, mut method, mut path) = (None, Method::POST, "/".to_owned());
        let mut headers = HeaderMap::new();
        for field in received.head_fields().flatten() {
            match field.name {
                ":name" => topic = HeaderValue::from_bytes(field.value).ok(),
                ":method" => method = Method::from_bytes(field.value).ok()?,
                ":path" => path = String::from_utf8(field.value.to_vec()).ok()?,
                name => append_header(&mut headers, name, field.value),
            }
        }
        set_trace_header(&mut headers, &received);
        headers.remove(CONTENT_LENGTH); // the body says it
        let first: Bytes = std::mem::take(&mut received.body).into();
        let body = read_body(first, received.take_reader()).await?;
        Some(Self {
            publisher,
            // An instance may publish before it is ready, and then has no address here.
            addr: addr.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            topic: topic?,
            method,
            path: path.starts_with('/').then_some(path)?,
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

/// Sends an event to one node for each subscriber that runs on other nodes alone.
async fn send_to_subscribers(worker: &Rc<WorkerContext>, event: PublishedEvent) {
    let topic = str::from_utf8(event.topic.as_bytes()).unwrap_or_default();
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
            .count_sent(status < StatusCode::BAD_REQUEST);
        // The record of the call ends with the body.
        let mut body = response.into_body();
        while let Some(Ok(_)) = body.frame().await {}
    }
}

/// Appends a field. Fields that HTTP does not allow are dropped: their writer may be hostile.
fn append_header(headers: &mut HeaderMap, name: &str, value: &[u8]) {
    let name = HeaderName::from_bytes(name.as_bytes());
    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
        headers.append(name, value);
    }
}

/// Sets `traceparent` from the envelope, where SDKs write their trace.
fn set_trace_header(headers: &mut HeaderMap, received: &ReceivedCall) {
    let trace = TraceContext {
        id: received.trace,
        span: received.span,
    };
    if trace.id != [0; 16] && !headers.contains_key(TRACEPARENT) {
        let text = HeaderValue::from_str(&trace.to_string()).expect("digits and dashes");
        headers.insert(HeaderName::from_static(TRACEPARENT), text);
    }
}
