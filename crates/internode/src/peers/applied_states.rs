//! States of other nodes that the own routes reflect, for the reports in pings.

use std::sync::Arc;

use nearpath_types::NodeName;
use tokio::sync::watch;

use crate::peer_states::PeerStates;
use crate::protocol::{AppliedReport, PING_PATH};

/// State of one node in the own routes.
#[derive(Clone)]
pub(super) struct AppliedState {
    node: NodeName,
    states: watch::Receiver<Arc<PeerStates>>,
    /// Report of the last ping.
    reported: Option<AppliedReport>,
}

impl AppliedState {
    pub(super) fn new(node: NodeName, states: watch::Receiver<Arc<PeerStates>>) -> Self {
        Self {
            node,
            states,
            reported: None,
        }
    }

    /// Returns path and query of a ping with the newest report.
    pub(super) fn next_ping(&mut self) -> String {
        self.reported = self.report();
        match self.reported {
            Some(report) => report.to_path(),
            None => PING_PATH.to_owned(),
        }
    }

    /// Waits until the report is another one than that of the last ping. Cancel safe.
    pub(super) async fn changed(&mut self) {
        while self.report() == self.reported {
            if self.states.changed().await.is_err() {
                // No routes follow the states any more.
                return std::future::pending().await;
            }
        }
    }

    fn report(&self) -> Option<AppliedReport> {
        let states = self.states.borrow();
        let status = states.peers.get(&self.node)?;
        Some(AppliedReport {
            incarnation: status.incarnation?,
            is_draining: status.is_draining,
        })
    }
}
