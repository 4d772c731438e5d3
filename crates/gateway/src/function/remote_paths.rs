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
        let choice = select_path(route.domain.is_some(), endpoint.target.udp.is_blocked_now());
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
fn select_path(callee_in_domain: bool, udp_blocked: bool) -> PathChoice {
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
    fn a_node_without_udp_is_called_over_tls() {
        let choice = select_path(true, false);
        assert_eq!(choice.path, Path::Quic);
        let blocked = select_path(true, true);
        let obstacle = blocked.obstacle.map(Obstacle::name);
        assert_eq!((blocked.path, obstacle), (Path::Tls, Some("udp_blocked")));
    }
}
