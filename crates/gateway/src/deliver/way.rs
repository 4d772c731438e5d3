//! Which path a call takes to one instance: what is known of the two, handed to [`nearpath_path`].

use nearpath_domain::post::polled::Post;
use nearpath_path::{self as path, Choice, Facts, Obstacle, Path};
use nearpath_types::policy::Transport;
use nearpath_wire::mutual::Version;

use super::pool::Cover;
use crate::call::Call;
use crate::route::Endpoint;

/// Decides, and notes it in the call's record.
pub(super) fn way(call: &mut Call, endpoint: &Endpoint) -> Way {
    let post = call.lane.domains.post(call);
    let known = post.as_ref().filter(|post| post.reaches(endpoint.id));
    let choice = choose(call, endpoint, post.is_some(), known.is_some());
    call.record.went(choice);
    match known.filter(|_| choice.path == Path::Shm) {
        Some(post) => Way::Memory(post.clone()),
        None => Way::Carried(choice.path),
    }
}

/// What was decided.
pub(super) enum Way {
    /// Through memory, as this party.
    Memory(Post),
    /// Over a connection.
    Carried(Path),
}

/// How a path over TCP is covered: 1.3, unless the instance's callers have to speak the other.
pub(super) fn cover(path: Path, transport: Transport) -> Cover {
    match (path, transport) {
        (Path::Tls, Transport::Tls12) => Cover::Tls(Version::Tls12),
        (Path::Tls, _) => Cover::Tls(Version::Tls13),
        (Path::Shm | Path::Quic | Path::Http, _) => Cover::Plain,
    }
}

/// The same again after memory had no room.
pub(super) fn past_memory(call: &mut Call, endpoint: &Endpoint) -> Path {
    let choice = choose(call, endpoint, true, false);
    let obstacle = choice.obstacle.map(|told| if told == Obstacle::NoParty { Obstacle::NoRoom } else { told });
    call.record.went(Choice { obstacle, ..choice });
    choice.path
}

/// The same again after the instance did not answer over UDP, which its endpoint knows by now.
pub(super) fn past_udp(call: &mut Call, endpoint: &Endpoint) -> Path {
    let facts =
        Facts { carrier: path::Carrier { udp_blocked: true, ..carrier(call, endpoint) }, ..facts(call, endpoint) };
    let choice = path::choose(&facts);
    call.record.went(choice);
    choice.path
}

fn choose(call: &Call, endpoint: &Endpoint, caller_is_party: bool, callee_is_party: bool) -> Choice {
    let facts = facts(call, endpoint);
    path::choose(&Facts { edge: path::Edge { caller_is_party, callee_is_party, ..facts.edge }, ..facts })
}

/// Without memory.
fn facts(call: &Call, endpoint: &Endpoint) -> Facts {
    Facts {
        edge: path::Edge {
            same_node: true,
            callee_in_domain: call.route.domain.is_some(),
            same_domain: true,
            caller_is_party: false,
            callee_is_party: false,
        },
        carrier: carrier(call, endpoint),
        call: path::Call { upgrade: call.asked.upgrade, grpc: call.asked.grpc },
    }
}

fn carrier(call: &Call, endpoint: &Endpoint) -> path::Carrier {
    path::Carrier {
        transport: endpoint.transport,
        caller_named: call.lane.lines.has_caller(),
        callee_named: endpoint.name().is_some(),
        udp_blocked: endpoint.reach.is_blocked_now(),
        tls: true, // who has a certificate speaks it
    }
}
