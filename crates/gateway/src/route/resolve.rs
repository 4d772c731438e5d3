//! Resolves a request to its destination, without waiting.

use std::net::Ipv4Addr;
use std::sync::Arc;

use http::{Method, Request};
use nearpath_types::{FunctionId, Reason};
use nearpath_wire::hop::headers::FUNCTION;
use nearpath_wire::hop::request_head::head_fault;

use super::target::{PathTarget, parse_path};
use crate::function::{FunctionEntry, RoutingTable};
use crate::request::{ListenerZone, PeerInfo, grpc};

/// Destination of a request.
pub(crate) enum RouteDestination {
    /// A function, whose own path begins at `path_offset`.
    Function {
        /// The function.
        function: Arc<FunctionEntry>,
        /// Offset in path and query of the request.
        path_offset: usize,
    },
    /// The administrative paths.
    Admin,
    /// `/healthz`.
    Health,
    /// A path between nodes: state, probes, status.
    NodeService,
}

/// A request without a destination.
pub(crate) struct UnroutableRequest {
    /// Reason of the refusal.
    pub reason: Reason,
    /// Text of the refusal.
    pub message: String,
    /// The connection is no longer trustworthy and must close.
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

/// Finds the destination of a request. `name_at` returns the name with a virtual address, also of a callee
/// that is not deployed.
///
/// # Errors
/// Returns [`UnroutableRequest`] with the refusal.
pub(crate) fn resolve<B>(
    table: &RoutingTable,
    peer: &PeerInfo,
    request: &Request<B>,
    name_at: impl FnOnce(Ipv4Addr) -> Option<FunctionId>,
) -> Result<RouteDestination, UnroutableRequest> {
    // A tunnel would bypass routing and permission (RFC 9110 section 9.3.6).
    if request.method() == Method::CONNECT {
        return Err(UnroutableRequest::new(
            Reason::MethodNotAllowed,
            "CONNECT is not supported",
        ));
    }
    if let Some(fault) = head_fault(request) {
        return Err(UnroutableRequest {
            closes_connection: true,
            ..UnroutableRequest::new(Reason::BadRequest, fault)
        });
    }
    if peer.zone == ListenerZone::Node {
        return resolve_for_node(table, request);
    }
    if let Some(address) = peer.called_address {
        let function = table.find_by_address(address);
        let function = function.ok_or_else(|| {
            let callee = name_at(address);
            UnroutableRequest::new(
                Reason::NoFunction,
                undeployed_text(table, peer, address, callee),
            )
        })?;
        return Ok(RouteDestination::Function {
            function,
            path_offset: 0,
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
        // Instances never reach the administrative paths: for them these do not exist.
        Ok(PathTarget::Admin) if peer.zone == ListenerZone::Public => Ok(RouteDestination::Admin),
        Ok(_) => Err(UnroutableRequest::new(
            Reason::NoFunction,
            "no function or service has this path",
        )),
        Err(error) => Err(UnroutableRequest::new(
            Reason::BadRequest,
            error.to_string(),
        )),
    }
}

/// Finds the destination of another node's request. A field names the function, so the path is the
/// function's own.
fn resolve_for_node<B>(
    table: &RoutingTable,
    request: &Request<B>,
) -> Result<RouteDestination, UnroutableRequest> {
    let Some(name) = request.headers().get(FUNCTION) else {
        return Ok(RouteDestination::NodeService);
    };
    let name = String::from_utf8_lossy(name.as_bytes());
    match table.find_by_name(&name) {
        Some(function) => Ok(RouteDestination::Function {
            function,
            path_offset: 0,
        }),
        None => {
            let why = format!("this node knows no function {name:?} yet, or no more");
            Err(UnroutableRequest::new(Reason::NotHere, why))
        }
    }
}

/// Writes that no function with a virtual address is deployed. Only a caller that declares the callee reads its
/// name: an instance can connect from any source, and so ask for any address.
fn undeployed_text(
    table: &RoutingTable,
    peer: &PeerInfo,
    address: Ipv4Addr,
    callee: Option<FunctionId>,
) -> String {
    let declared = table.find_caller(peer.addr).zip(callee);
    match declared.filter(|(caller, callee)| caller.route().policy.may_call(callee)) {
        Some((caller, callee)) => format!(
            "{callee} (virtual address {address}) is not deployed; deploy it, or remove the edge from {}",
            caller.name
        ),
        None => format!("no function with the virtual address {address} is deployed"),
    }
}

/// Finds the function behind an alias of the caller's chain.
fn find_alias(table: &RoutingTable, peer: &PeerInfo, name: &str) -> Option<Arc<FunctionEntry>> {
    // Aliases belong to a chain; callers outside have none.
    if peer.zone != ListenerZone::Internal {
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

/// Finds a function by the authority: a generated gRPC client cannot prefix its paths.
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

fn unknown_function(name: &str) -> UnroutableRequest {
    match name.parse::<FunctionId>() {
        Ok(id) => {
            UnroutableRequest::new(Reason::NoFunction, format!("no function {id} is deployed"))
        }
        Err(error) => UnroutableRequest::new(Reason::BadRequest, error.to_string()),
    }
}
