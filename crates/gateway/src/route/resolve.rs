//! From a request to its destination, without waiting for anything.

use std::sync::Arc;

use http::header::HOST;
use http::{Method, Request, Version};
use nearpath_types::{FunctionId, Reason};

use super::target::{PathTarget, parse_path};
use crate::function::{FunctionEntry, RoutingTable};
use crate::request::{ListenerZone, PeerInfo, grpc};

/// The destination of a request.
pub(crate) enum RouteDestination {
    /// A function, whose own path begins at `rest` in the request's.
    Function {
        /// The function.
        function: Arc<FunctionEntry>,
        /// Index into the request's path and query.
        path_offset: usize,
    },
    /// The administrator's side.
    Admin,
    /// `/healthz`.
    Health,
}

/// A request without a destination.
pub(crate) struct UnroutableRequest {
    /// The reason of its refusal.
    pub reason: Reason,
    /// The text of its refusal.
    pub message: String,
    /// The connection cannot be trusted any more and has to be closed.
    pub closes_connection: bool,
}

impl UnroutableRequest {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            closes_connection: false,
        }
    }
}

/// Finds the destination of a request.
///
/// # Errors
/// [`UnroutableRequest`] says how to refuse it.
pub(crate) fn resolve<B>(
    table: &RoutingTable,
    peer: &PeerInfo,
    request: &Request<B>,
) -> Result<RouteDestination, UnroutableRequest> {
    if request.method() == Method::CONNECT {
        return Err(UnroutableRequest::new(
            Reason::MethodNotAllowed,
            "CONNECT is not served here",
        ));
    }
    if !has_one_host(request) {
        let refusal = UnroutableRequest::new(
            Reason::BadRequest,
            "a request must bear one Host (RFC 9112 section 3.2)",
        );
        return Err(UnroutableRequest {
            closes_connection: true,
            ..refusal
        });
    }
    match parse_path(request.uri().path()) {
        Ok(PathTarget::Function { name, path_offset }) => match table
            .find_by_name(name)
            .or_else(|| find_alias(table, peer, name))
        {
            Some(function) => Ok(RouteDestination::Function {
                function,
                path_offset,
            }),
            None => Err(unknown_function(name)),
        },
        Ok(PathTarget::Unknown) if grpc::is_grpc(request) => find_by_authority(table, request),
        Ok(PathTarget::Health) => Ok(RouteDestination::Health),
        Ok(PathTarget::Admin) if peer.zone == ListenerZone::Public => Ok(RouteDestination::Admin),
        Ok(_) => Err(UnroutableRequest::new(
            Reason::NoFunction,
            "nothing is served on this path",
        )),
        Err(error) => Err(UnroutableRequest::new(
            Reason::BadRequest,
            error.to_string(),
        )),
    }
}

/// Finds the function that an instance means by a name of its chain's.
fn find_alias(table: &RoutingTable, peer: &PeerInfo, name: &str) -> Option<Arc<FunctionEntry>> {
    if peer.zone == ListenerZone::Public {
        return None;
    }
    let caller = table.find_caller(peer.addr)?;
    let name = match name.contains('.') {
        true => name.parse().ok()?,
        false => FunctionId {
            name: name.parse().ok()?,
            namespace: caller.id.namespace.clone(),
        },
    };
    table.get(caller.route().policy.resolve_alias(&name)?)
}

/// Finds the function that the authority names: a generated gRPC client cannot put a prefix before its paths.
fn find_by_authority<B>(
    table: &RoutingTable,
    request: &Request<B>,
) -> Result<RouteDestination, UnroutableRequest> {
    let name = request
        .uri()
        .authority()
        .map_or("", |authority| authority.host());
    match table.find_by_name(name) {
        Some(function) => Ok(RouteDestination::Function {
            function,
            path_offset: 0,
        }),
        None => Err(unknown_function(name)),
    }
}

/// Two hosts would be two meanings. HTTP/1.0 may do without one, HTTP/2 has `:authority` instead.
fn has_one_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => true,
        (None, _) => request.version() != Version::HTTP_11,
        (Some(_), Some(_)) => false,
    }
}

fn unknown_function(name: &str) -> UnroutableRequest {
    match name.parse::<FunctionId>() {
        Ok(id) => {
            UnroutableRequest::new(Reason::NoFunction, format!("no function {id} is deployed"))
        }
        Err(error) => UnroutableRequest::new(Reason::BadRequest, error.to_string()),
    }
}
