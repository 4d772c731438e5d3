//! From a request to its destination, without waiting for anything.

use std::sync::Arc;

use http::header::HOST;
use http::{Method, Request, Version};
use nearpath_types::{FunctionId, Reason};

use super::target::{Target, parse};
use crate::function::{Function, Table};
use crate::request::{Peer, Zone, grpc};

/// The destination of a request.
pub(crate) enum Destination {
    /// A function, whose own path begins at `rest` in the request's.
    Function {
        /// The function.
        function: Arc<Function>,
        /// Index into the request's path and query.
        rest: usize,
    },
    /// The administrator's side.
    Admin,
    /// `/healthz`.
    Health,
}

/// A request without a destination.
pub(crate) struct Unroutable {
    /// The reason of its refusal.
    pub reason: Reason,
    /// The text of its refusal.
    pub message: String,
    /// The connection cannot be trusted any more and has to be closed.
    pub closes: bool,
}

impl Unroutable {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), closes: false }
    }
}

/// Finds the destination of a request.
///
/// # Errors
/// [`Unroutable`] says how to refuse it.
pub(crate) fn resolve<B>(table: &Table, peer: &Peer, request: &Request<B>) -> Result<Destination, Unroutable> {
    if request.method() == Method::CONNECT {
        return Err(Unroutable::new(Reason::MethodNotAllowed, "CONNECT is not served here"));
    }
    if !has_one_host(request) {
        let refusal = Unroutable::new(Reason::BadRequest, "a request must bear one Host (RFC 9112 section 3.2)");
        return Err(Unroutable { closes: true, ..refusal });
    }
    match parse(request.uri().path()) {
        Ok(Target::Function { name, rest }) => match table.find(name).or_else(|| find_alias(table, peer, name)) {
            Some(function) => Ok(Destination::Function { function, rest }),
            None => Err(unknown_function(name)),
        },
        Ok(Target::Nowhere) if grpc::is_grpc(request) => find_by_authority(table, request),
        Ok(Target::Health) => Ok(Destination::Health),
        Ok(Target::Admin) if peer.zone == Zone::Public => Ok(Destination::Admin),
        Ok(_) => Err(Unroutable::new(Reason::NoFunction, "nothing is served on this path")),
        Err(error) => Err(Unroutable::new(Reason::BadRequest, error.to_string())),
    }
}

/// Finds the function that an instance means by a name of its chain's.
fn find_alias(table: &Table, peer: &Peer, name: &str) -> Option<Arc<Function>> {
    if peer.zone == Zone::Public {
        return None;
    }
    let caller = table.caller(peer.addr)?;
    let name = match name.contains('.') {
        true => name.parse().ok()?,
        false => FunctionId { name: name.parse().ok()?, namespace: caller.id.namespace.clone() },
    };
    table.get(caller.route().policy.alias(&name)?)
}

/// Finds the function that the authority names: a generated gRPC client cannot put a prefix before its paths.
fn find_by_authority<B>(table: &Table, request: &Request<B>) -> Result<Destination, Unroutable> {
    let name = request.uri().authority().map_or("", |authority| authority.host());
    match table.find(name) {
        Some(function) => Ok(Destination::Function { function, rest: 0 }),
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

fn unknown_function(name: &str) -> Unroutable {
    match name.parse::<FunctionId>() {
        Ok(id) => Unroutable::new(Reason::NoFunction, format!("no function {id} is deployed")),
        Err(error) => Unroutable::new(Reason::BadRequest, error.to_string()),
    }
}
