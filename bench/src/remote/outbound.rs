//! The outbound proxy of a machine, which forwards calls to `/function/NAME` to another machine, by
//! the route in the call. A gateway between machines works likewise, but all transports reach it.
//!
//! The proxy replaces the caller's watchdog. A call uses a new connection, a connection opened
//! ahead, or with [`ConnectionPolicy::Kept`] always the same one.

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

/// Maximum age of an idle connection: the other end may have closed an older one.
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
    /// Identity of the calls.
    pub(crate) identity: CallIdentity,
    /// Callees by name.
    pub(crate) callees: BTreeMap<String, CalleeAddress>,
    pub(crate) policy: ConnectionPolicy,
    /// Gateway for calls that do not go to their callee directly.
    pub(crate) gateway: Option<CalleeAddress>,
}

/// An open connection without a call.
struct WaitingConnection {
    since: Instant,
    opening: JoinHandle<Result<CallConnection, RequestFailure>>,
}

/// Caller of the outbound proxy, with its connections.
struct OutboundCaller {
    caller: Rc<RemoteCaller>,
    callees: BTreeMap<String, CalleeAddress>,
    policy: ConnectionPolicy,
    gateway: Option<CalleeAddress>,
    /// Connections by name of the callee.
    waiting: RefCell<BTreeMap<String, WaitingConnection>>,
    /// Set if a call used an unexpected route, detected after its response: a first flight was
    /// rejected.
    route_missed: Cell<bool>,
}

/// Starts the outbound proxy at this loopback port, on a separate thread until the process exits.
/// Returns the thread id.
pub(crate) fn start_outbound(plan: OutboundPlan, port: u16) -> Result<u32, BenchError> {
    all_transports::spawn_in_node(&plan.node.clone(), "outward", async move |ready| {
        let listener = port::listen_on(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let outbound = OutboundCaller::new(plan)?;
        ready();
        port::serve_port(listener, PortProtocol::Plain, move |request| {
            handle_call(Rc::clone(&outbound), request)
        })
        .await;
        Ok(())
    })
}

/// Starts a gateway likewise, at [`all_transports::callee_address`].
pub(crate) fn start_gateway(plan: OutboundPlan, provision: Provision) -> Result<u32, BenchError> {
    all_transports::spawn_in_node(&plan.node.clone(), "between", async move |ready| {
        let outbound = OutboundCaller::new(plan)?;
        let again = Rc::clone(&outbound);
        let http = move |request| handle_call(Rc::clone(&outbound), request);
        let quic = move |call: ServedCall| handle_call(Rc::clone(&again), call.request);
        all_transports::serve_all(provision, http, quic, ready).await
    })
}

async fn handle_call<B>(outbound: Rc<OutboundCaller>, request: Request<B>) -> Response<Full<Bytes>>
where
    B: http_body::Body<Data = Bytes>,
{
    let (head, body) = request.into_parts();
    let passed = match body.collect().await {
        Ok(body) => {
            outbound
                .forward_call(Request::from_parts(head, body.to_bytes()))
                .await
        }
        Err(_) => Err(RequestFailure::Broken),
    };
    passed.map_or_else(
        |failure| refusal_response(&failure),
        |response| response.map(Full::new),
    )
}

fn refusal_response(failure: &RequestFailure) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(failure.to_string()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}

/// Parses `/function/NAME/PATH` into the name and `/PATH`.
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
            policy,
            gateway,
            ..
        } = plan;
        let caller = Rc::new(RemoteCaller::new(identity)?);
        let (waiting, route_missed) = (RefCell::default(), Cell::new(false));
        Ok(Rc::new(Self {
            caller,
            callees,
            policy,
            gateway,
            waiting,
            route_missed,
        }))
    }

    /// Forwards a call. The call after an unexpected route fails, so that the error is visible.
    async fn forward_call(
        self: &Rc<Self>,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, RequestFailure> {
        // The failure belongs to the call before, whose answer has gone out; failing this one makes
        // it visible.
        if self.route_missed.take() {
            return Err(RequestFailure::Broken);
        }
        let (route, name, callee) = self
            .resolve_route(&mut request)
            .ok_or(RequestFailure::Connect)?;
        request.headers_mut().remove(http::header::CONNECTION); // it applies to the connection that ends here
        let mut connection = self
            .take_connection(route.transport, &name, &callee)
            .await?;
        let response = connection.request_whole(request).await?;
        self.prepare_next(route.transport, &name, callee, connection);
        Ok(response)
    }

    /// Resolves the next callee and its name. Only the callee itself gets a path without the name.
    fn resolve_route(
        &self,
        request: &mut Request<Bytes>,
    ) -> Option<(CallRoute, String, CalleeAddress)> {
        let route = CallRoute::from_request(request)?;
        let (name, path) = parse_target(request.uri().path_and_query()?.as_str())?;
        if let (true, Some(gateway)) = (route.via_gateway, &self.gateway) {
            return Some((route, name, gateway.clone()));
        }
        // After the gateway's case: a gateway needs the name to route.
        *request.uri_mut() = path.parse().ok()?;
        let callee = self.callees.get(&name)?.clone();
        Some((route, name, callee))
    }

    async fn take_connection(
        &self,
        transport: RemoteTransport,
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
            Some(waiting) if self.opens_ahead(transport) => waiting
                .opening
                .await
                .unwrap_or(Err(RequestFailure::Connect)),
            _ => self.caller.open_connection(transport, callee).await,
        }
    }

    /// Returns whether connections of this transport are opened ahead.
    fn opens_ahead(&self, transport: RemoteTransport) -> bool {
        self.policy == ConnectionPolicy::Kept || transport == RemoteTransport::QuicReady
    }

    /// Prepares the next call after the response, so that the response does not wait for it.
    fn prepare_next(
        self: &Rc<Self>,
        transport: RemoteTransport,
        name: &str,
        callee: CalleeAddress,
        connection: CallConnection,
    ) {
        let opening = match (self.policy, transport) {
            (ConnectionPolicy::Kept, _) => spawn_local(async { Ok(connection) }),
            (ConnectionPolicy::New, RemoteTransport::QuicReady) => {
                // Each call of this variant has a connection of its own, only its handshake is done
                // ahead.
                self.close_connection(connection);
                let caller = Rc::clone(&self.caller);
                spawn_local(async move { caller.open_connection(transport, &callee).await })
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
        let outbound = Rc::clone(self);
        spawn_local(async move {
            if connection.close_gracefully().await.is_err() {
                outbound.route_missed.set(true);
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
        fn a_composed_target_is_parsed(name in "[a-z][a-z0-9-]{0,20}", path in "/[a-z0-9/?=&]{0,30}") {
            prop_assert_eq!(parse_target(&format!("/function/{name}{path}")), Some((name, path)));
        }
    }
}
