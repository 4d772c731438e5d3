//! Replies to status queries: one line per query.

use nearpath_types::chain_status::EdgeStatus;
use nearpath_types::{StatusQuery, StatusReport, StatusSource};

use crate::node::Node;
use crate::paths;
use crate::remote_paths::remote_rows;
use crate::totals::sum_edges;

impl Node {
    /// Returns the edges with their calls and connections.
    fn edge_status(&self) -> Vec<EdgeStatus> {
        let connections = self.switch_report.edge_status();
        let calls = self.stats.edge_status().into_iter();
        sum_edges(calls.chain(connections))
    }
}

impl StatusSource for Node {
    fn status(&self, query: StatusQuery) -> StatusReport {
        match query {
            StatusQuery::Edges => StatusReport::Edges(self.edge_status()),
            StatusQuery::Memory => StatusReport::Memory(self.stats.memory_status()),
            StatusQuery::Paths => {
                let snapshot = self.watch_snapshots.borrow().clone();
                let mut rows = paths::matrix(
                    &snapshot,
                    &self.stats.memberships(),
                    self.stats.direct_paths(),
                );
                rows.extend(remote_rows(&snapshot, &self.stats.remote_calls()));
                StatusReport::Paths(rows)
            }
            StatusQuery::Pool => StatusReport::Pool(self.pool_report.read_status()),
        }
    }
}
