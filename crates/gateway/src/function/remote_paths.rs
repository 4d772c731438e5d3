//! Paths of plain calls to other nodes, as this gateway selects them now.

use nearpath_path::{
    self as path, CallFacts, CallNeeds, EdgeFacts, Obstacle, PathChoice, TransportFacts,
};
use nearpath_types::{FunctionId, NodeName};

use super::endpoint::{EndpointId, FunctionEndpoint};
use super::entry::FunctionEntry;
use super::routing_table::RoutingTable;

/// Path of a plain call to a function on another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePath {
    /// Called function.
    pub callee: FunctionId,
    /// Node to which the call goes.
    pub node: NodeName,
    /// Name of the path.
    pub path: &'static str,
    /// Name of the obstacle to a nearer path.
    pub obstacle: Option<&'static str>,
    /// The obstacle as a sentence.
    pub reason: Option<String>,
    /// The function runs on this node too: calls go to the other one while no place is free here.
    pub runs_here: bool,
}

impl RoutingTable {
    /// Returns the path of each function to each other node that may be called for it.
    pub(crate) fn remote_paths(&self) -> Vec<RemotePath> {
        let functions = self.functions();
        functions.iter().flat_map(|one| paths_of(one)).collect()
    }
}

fn paths_of(function: &FunctionEntry) -> Vec<RemotePath> {
    let route = function.route();
    let path_to = |endpoint: &FunctionEndpoint| {
        let EndpointId::Node(node) = &endpoint.id else {
            return None;
        };
        let target = &endpoint.target;
        let (blocked, kept) = (target.udp.is_blocked_now(), target.has_kept_connections());
        let choice = select_path(route.domain.is_some(), blocked, kept);
        Some(RemotePath {
            callee: function.id.clone(),
            node: node.clone(),
            path: choice.path.name(),
            obstacle: choice.obstacle.map(Obstacle::name),
            reason: choice.obstacle.map(|obstacle| obstacle.to_string()),
            runs_here: route.runs_here,
        })
    };
    route
        .remotes
        .iter()
        .filter_map(|one| path_to(one))
        .collect()
}

/// Selects the path of a plain call to another node. Nodes have certificates and speak TLS.
fn select_path(callee_in_domain: bool, udp_blocked: bool, kept_tls: bool) -> PathChoice {
    let facts = CallFacts {
        edge: EdgeFacts {
            same_node: false,
            callee_in_domain,
            same_domain: true,
            caller_attached: false,
            callee_attached: false,
            callee_is_watchdog: false,
        },
        transport: TransportFacts {
            wanted: nearpath_types::policy::CallTransport::Auto,
            caller_has_certificate: true,
            callee_has_certificate: true,
            udp_blocked,
            tls: true,
            kept_tls,
            own_port: false,
        },
        needs: CallNeeds::PLAIN,
    };
    path::select_paths(&facts).first_choice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_path::Path;

    #[test]
    fn tls_carries_calls_without_udp_and_over_kept_connections() {
        assert_eq!(select_path(true, false, false).path, Path::Quic);
        for (blocked, kept, why) in [(true, true, "udp_blocked"), (false, true, "kept_tls")] {
            let choice = select_path(true, blocked, kept);
            let obstacle = choice.obstacle.map(Obstacle::name);
            assert_eq!((choice.path, obstacle), (Path::Tls, Some(why)));
        }
    }
}
