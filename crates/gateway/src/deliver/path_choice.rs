//! Facts about a call to one instance, and the plan that [`nearpath_path`] derives from them.

use http_body::Body;
use nearpath_domain::CalleeKind;
use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_path::{
    self as path, CallFacts, CallNeeds, EdgeFacts, Obstacle, Path, PathPlan, TransportFacts,
};
use nearpath_types::policy::CallTransport;
use nearpath_wire::mtls::TlsVersion;

use super::own_port;
use crate::call::GatewayCall;
use crate::function::FunctionEndpoint;
use crate::transport::TlsMode;

/// Selects the paths to an instance and records the first one. Returns this thread's
/// shared-memory endpoint if the plan allows it.
pub(super) fn plan_paths(
    call: &mut GatewayCall,
    endpoint: &FunctionEndpoint,
) -> (PathPlan, Option<AsyncEndpoint>) {
    let shm_endpoint = call
        .route
        .domain
        .as_deref()
        .and_then(|domain| call.worker.shm_domains.endpoint_in(domain));
    // Attached to the domain and connected to this instance are two facts: the log names the one
    // that is missing.
    let is_attached = shm_endpoint.is_some();
    let callee = shm_endpoint
        .as_ref()
        .zip(endpoint.instance())
        .and_then(|(one, id)| one.callee_at(id));
    let shm_endpoint = shm_endpoint.filter(|_| callee.is_some());
    let plan = path::select_paths(&call_facts(call, endpoint, (is_attached, callee)));
    call.record.set_path(plan.first_choice());
    (plan, shm_endpoint.filter(|_| plan.allows_path(Path::Shm)))
}

/// Removes a failed path from the plan and records the next one.
pub(super) fn strike_out(
    call: &mut GatewayCall,
    plan: PathPlan,
    failed: Path,
    obstacle: Obstacle,
) -> PathPlan {
    let plan = plan.without_path(failed, obstacle);
    call.record.set_path(plan.first_choice());
    plan
}

/// Returns how a path over TCP is encrypted: with TLS 1.3, unless the instance's callers have to
/// speak TLS 1.2.
pub(super) fn tls_mode(path: Path, transport: CallTransport) -> TlsMode {
    match (path, transport) {
        (path, _) if path.is_clear() => TlsMode::Plain,
        (_, CallTransport::Tls12) => TlsMode::Tls(TlsVersion::Tls12),
        (_, _) => TlsMode::Tls(TlsVersion::Tls13),
    }
}

fn call_facts(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    (caller_attached, callee): (bool, Option<CalleeKind>),
) -> CallFacts {
    CallFacts {
        edge: EdgeFacts {
            same_node: !endpoint.is_remote(),
            callee_in_domain: call.route.domain.is_some(),
            same_domain: true, // the gateway joins every domain of its node
            caller_attached,
            callee_attached: callee.is_some(),
            callee_is_watchdog: callee == Some(CalleeKind::Watchdog),
        },
        transport: TransportFacts {
            wanted: endpoint.transport,
            caller_has_certificate: call
                .worker
                .connections_to(&endpoint.target)
                .quic
                .has_caller(),
            callee_has_certificate: endpoint.target.server_name().is_some(),
            udp_blocked: endpoint.target.udp.is_blocked_now(),
            tls: true,       // every instance with a certificate speaks TLS
            kept_tls: false, // the fast path takes these
            own_port: endpoint.server().is_some(),
        },
        needs: CallNeeds {
            upgrade: call.options.wants_upgrade,
            grpc: call.options.is_grpc,
            trailers: call.options.announces_trailers,
            bulk: is_bulk(call),
            watchdog: !own_port::is_suitable(call),
        },
    }
}

/// Returns whether the request's body is long or of unknown length. Messages of gRPC streams are short as a
/// rule, though their length is unknown.
fn is_bulk(call: &GatewayCall) -> bool {
    let body = call.request.as_ref().map(http::Request::body);
    let length = body.and_then(|body| body.size_hint().exact());
    let min_bytes = call.worker.min_bulk_bytes;
    !call.options.is_grpc && body.is_some() && length.is_none_or(|bytes| bytes >= min_bytes)
}
