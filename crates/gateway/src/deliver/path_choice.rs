//! The facts about a call and one instance, and the plan that [`nearpath_path`] makes of them.

use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_path::{self as path, CallFacts, CallNeeds, EdgeFacts, Obstacle, Path, Plan, TransportFacts};
use nearpath_types::Locality;
use nearpath_types::policy::Transport;
use nearpath_wire::mutual::Version;

use crate::call::Call;
use crate::function::Endpoint;
use crate::transport::Cover;

/// Selects the paths to an instance and records the first; with this thread's endpoint in shared memory, where the plan allows that.
pub(super) fn plan(call: &mut Call, endpoint: &Endpoint) -> (Plan, Option<AsyncEndpoint>) {
    let post = call.route.domain.as_deref().and_then(|domain| call.lane.domains.of(domain));
    let is_attached = post.is_some();
    let post = post.filter(|post| post.has_instance(endpoint.id));
    let plan = path::select(&facts(call, endpoint, (is_attached, post.is_some())));
    call.record.went(plan.first());
    (plan, post.filter(|_| plan.allows(Path::Shm)))
}

/// Strikes out a path that has failed, and records the next one.
pub(super) fn next(call: &mut Call, plan: Plan, failed: Path, obstacle: Obstacle) -> Plan {
    let plan = plan.without(failed, obstacle);
    call.record.went(plan.first());
    plan
}

/// Returns how a path over TCP is encrypted: with TLS 1.3, unless the instance's callers have to speak TLS 1.2.
pub(super) fn cover(path: Path, transport: Transport) -> Cover {
    match (path, transport) {
        (path, _) if path.is_clear() => Cover::Plain,
        (_, Transport::Tls12) => Cover::Tls(Version::Tls12),
        (_, _) => Cover::Tls(Version::Tls13),
    }
}

fn facts(call: &Call, endpoint: &Endpoint, (caller_attached, callee_attached): (bool, bool)) -> CallFacts {
    CallFacts {
        edge: EdgeFacts {
            same_node: endpoint.locality == Locality::SameNode,
            callee_in_domain: call.route.domain.is_some(),
            same_domain: true, // the gateway belongs to every domain of its node
            caller_attached,
            callee_attached,
        },
        transport: TransportFacts {
            wanted: endpoint.transport,
            caller_has_certificate: call.lane.lines.has_caller(),
            callee_has_certificate: endpoint.name().is_some(),
            udp_blocked: endpoint.reach.is_blocked_now(),
            tls: true, // whoever has a certificate speaks TLS
        },
        needs: CallNeeds { upgrade: call.asked.upgrade, grpc: call.asked.grpc },
    }
}
