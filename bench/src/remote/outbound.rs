//! The way out of a machine: what functions there call at `/function/NAME`, it calls on another
//! machine, by the route that the call came with. A gateway between machines is the same, but
//! reached by every transport.
//!
//! The proxy stands in for the caller's watchdog. A call takes a new connection, a connection
//! opened ahead, or with [`ConnectionPolicy::Kept`] always the same one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use nearpath_testkit::lab::LabNode;
use nearpath_wire::quic::ServedCall;
use nearpath_wire::zero_rtt::Provision;
use tokio::task::{JoinHandle, spawn_local};

use super::call::CallRoute;
use super::caller::{CallConnection, CalleeAddress, RemoteCaller};
use super::identities::CallIdentity;
use super::port::{self, PortProtocol};
use super::{BenchError, RemoteTransport, all_transports};
use crate::tally::RequestFailure;

/// A connection that has waited longer is not used: its other end may have given it up.
const MAX_IDLE_AGE: Duration = Duration::from_secs(3);

/// Choice of the connection for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPolicy {
    /// A new connection for each call.
    New,
    /// The same connection for all calls.
    Kept,
}

/// Parts of an outbound proxy.
pub(crate) struct OutboundPlan {
    pub(crate) node: LabNode,
    /// As whom it calls.
    pub(crate) identity: CallIdentity,
    /// By name.
    pub(crate) callees: BTreeMap<String, CalleeAddress>,
    pub(crate) manner: ConnectionPolicy,
    /// Gateway for calls that do not go to their callee directly.
    pub(crate) gateway: Option<CalleeAddress>,
}

/// A connection that waits for a call.
struct WaitingConnection {
    since: Instant,
    opening: JoinHandle<Result<CallConnection, RequestFailure>>,
}

/// A caller of the outbound path, with its connections.
struct OutboundCaller {
    caller: Rc<RemoteCaller>,
    callees: BTreeMap<String, CalleeAddress>,
    manner: ConnectionPolicy,
    gateway: Option<CalleeAddress>,
    /// By name of the callee.
    waiting: RefCell<BTreeMap<String, WaitingConnection>>,
    /// A call did not go as it should have, which was seen only after its answer: a first flight
    /// was not taken.
    untrue: Cell<bool>,
}

/// Starts the way out of a machine, at that port of its loopback, on a thread of its own, which
/// goes on as long as the process. Returns the thread's number.
pub(crate) fn start_outbound(plan: OutboundPlan, port: u16) -> Result<u32, BenchError> {
    all_transports::spawn_in_node(&plan.node.clone(), "outward", async move |ready| {
        let listener = port::listen_on(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let outward = OutboundCaller::new(plan)?;
        ready();
        port::serve_port(listener, PortProtocol::Plain, move |request| {
            answer_call(Rc::clone(&outward), request)
        })
        .await;
        Ok(())
    })
}

/// Starts a gateway likewise, which callers find where [`all_transports::callee_address`] says.
pub(crate) fn start_gateway(plan: OutboundPlan, provision: Provision) -> Result<u32, BenchError> {
    all_transports::spawn_in_node(&plan.node.clone(), "between", async move |ready| {
        let outward = OutboundCaller::new(plan)?;
        let again = Rc::clone(&outward);
        let http = move |request| answer_call(Rc::clone(&outward), request);
        let quic = move |call: ServedCall| answer_call(Rc::clone(&again), call.request);
        all_transports::serve_all(provision, http, quic, ready).await
    })
}

async fn answer_call<B>(outward: Rc<OutboundCaller>, request: Request<B>) -> Response<Full<Bytes>>
where
    B: http_body::Body<Data = Bytes>,
{
    let (head, body) = request.into_parts();
    let passed = match body.collect().await {
        Ok(body) => {
            outward
                .forward_call(Request::from_parts(head, body.to_bytes()))
                .await
        }
        Err(_) => Err(RequestFailure::Broken),
    };
    passed.map_or_else(
        |failure| refusal_response(&failure),
        |answer| answer.map(Full::new),
    )
}

fn refusal_response(failure: &RequestFailure) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(failure.to_string()));
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}

/// `/function/NAME/PATH` → name and `/PATH`.
fn parse_target(target: &str) -> Option<(String, String)> {
    let rest = target.strip_prefix("/function/")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (name, path) = rest.split_at(end);
    Some((
        name.to_owned(),
        if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        },
    ))
}

impl OutboundCaller {
    fn new(plan: OutboundPlan) -> Result<Rc<Self>, BenchError> {
        let OutboundPlan {
            identity,
            callees,
            manner,
            gateway,
            ..
        } = plan;
        let caller = Rc::new(RemoteCaller::new(identity)?);
        let (waiting, untrue) = (RefCell::default(), Cell::new(false));
        Ok(Rc::new(Self {
            caller,
            callees,
            manner,
            gateway,
            waiting,
            untrue,
        }))
    }

    /// The call after an untrue one fails, so that somebody notices.
    async fn forward_call(
        self: &Rc<Self>,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, RequestFailure> {
        // The failure belongs to the call before, whose answer has gone out; failing this one makes
        // it visible.
        if self.untrue.take() {
            return Err(RequestFailure::Broken);
        }
        let (route, name, callee) = self
            .resolve_route(&mut request)
            .ok_or(RequestFailure::Connect)?;
        request.headers_mut().remove(http::header::CONNECTION); // it speaks of the connection that ends here
        let mut connection = self.take_connection(route.way, &name, &callee).await?;
        let answer = connection.request_whole(request).await?;
        self.prepare_next(route.way, &name, callee, connection);
        Ok(answer)
    }

    /// Resolves the next callee and its name. Only the callee itself gets a path without the name.
    fn resolve_route(
        &self,
        request: &mut Request<Bytes>,
    ) -> Option<(CallRoute, String, CalleeAddress)> {
        let route = CallRoute::from_request(request)?;
        let (name, path) = parse_target(request.uri().path_and_query()?.as_str())?;
        if let (true, Some(gateway)) = (route.detour, &self.gateway) {
            return Some((route, name, gateway.clone()));
        }
        // After the gateway's case: a gateway needs the name to route.
        *request.uri_mut() = path.parse().ok()?;
        let callee = self.callees.get(&name)?.clone();
        Some((route, name, callee))
    }

    async fn take_connection(
        &self,
        way: RemoteTransport,
        name: &str,
        callee: &CalleeAddress,
    ) -> Result<CallConnection, RequestFailure> {
        let waiting = self
            .waiting
            .borrow_mut()
            .remove(name)
            // An old one is dropped rather than tried: a retry would be part of a latency.
            .filter(|waiting| waiting.since.elapsed() < MAX_IDLE_AGE);
        match waiting {
            Some(waiting) if self.is_ahead(way) => waiting
                .opening
                .await
                .unwrap_or(Err(RequestFailure::Connect)),
            _ => self.caller.open_connection(way, callee).await,
        }
    }

    /// Returns true if connections of this transport are opened ahead.
    fn is_ahead(&self, way: RemoteTransport) -> bool {
        self.manner == ConnectionPolicy::Kept || way == RemoteTransport::QuicReady
    }

    /// Prepares the next call after the answer, so that the answer does not wait for it.
    fn prepare_next(
        self: &Rc<Self>,
        way: RemoteTransport,
        name: &str,
        callee: CalleeAddress,
        connection: CallConnection,
    ) {
        let opening = match (self.manner, way) {
            (ConnectionPolicy::Kept, _) => spawn_local(async { Ok(connection) }),
            (ConnectionPolicy::New, RemoteTransport::QuicReady) => {
                // Each call of this variant has a connection of its own, only its handshake is done
                // ahead.
                self.close_connection(connection);
                let caller = Rc::clone(&self.caller);
                spawn_local(async move { caller.open_connection(way, &callee).await })
            }
            (ConnectionPolicy::New, _) => return self.close_connection(connection),
        };
        self.waiting.borrow_mut().insert(
            name.to_owned(),
            WaitingConnection {
                since: Instant::now(),
                opening,
            },
        );
    }

    fn close_connection(self: &Rc<Self>, connection: CallConnection) {
        let outward = Rc::clone(self);
        spawn_local(async move {
            if connection.close_gracefully().await.is_err() {
                outward.untrue.set(true);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_and_paths() {
        let read = |target| parse_target(target).map(|(name, path)| format!("{name} {path}"));
        assert_eq!(
            read("/function/photo-assign/").as_deref(),
            Some("photo-assign /")
        );
        assert_eq!(
            read("/function/photo-success/?a=b/c").as_deref(),
            Some("photo-success /?a=b/c")
        );
        assert_eq!(read("/function/echo?x=1").as_deref(), Some("echo /?x=1"));
        assert_eq!(read("/function/echo").as_deref(), Some("echo /"));
        assert_eq!(read("/echo"), None);
    }

    proptest! {
        #[test]
        fn what_is_composed_is_read(name in "[a-z][a-z0-9-]{0,20}", path in "/[a-z0-9/?=&]{0,30}") {
            prop_assert_eq!(parse_target(&format!("/function/{name}{path}")), Some((name, path)));
        }
    }
}
