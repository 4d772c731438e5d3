//! Replies to status queries: one line per query.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use nearpath_types::chain_status::EdgeStatus;
use nearpath_types::{FunctionId, StatusQuery, StatusReport, StatusSource};

use crate::connection_totals::ConnectionTotals;
use crate::node::Node;
use crate::paths;
use crate::remote_paths::remote_rows;
use crate::totals::sum_edges;
use crate::virtual_switch::DatagramReport;

impl Node {
    /// Returns the connections along declared edges, by callee: those that the kernel counts, and those of
    /// other nodes. None without virtual addresses.
    pub fn connection_totals(&self) -> BTreeMap<FunctionId, ConnectionTotals> {
        let mut totals = BTreeMap::<_, ConnectionTotals>::new();
        for edge in self.switch_report.connection_counts() {
            if let Some((callee, traffic)) = edge.callee.zip(edge.traffic) {
                let total = totals.entry(callee).or_default();
                let connections = traffic.connections.saturating_add(traffic.cold);
                let started = connections.saturating_add(traffic.datagram_flows);
                total.started = total.started.saturating_add(started);
                let open = connections.saturating_sub(traffic.ended);
                total.open = total.open.saturating_add(open);
            }
        }
        self.stream_counts.add_incoming(&mut totals);
        // The kernel does not see that a forwarded flow is used: its socket is connected.
        let forwarded = self.switch_report.datagrams();
        for (callee, flows) in forwarded
            .map(DatagramReport::flows_by_callee)
            .into_iter()
            .flatten()
        {
            let total = totals.entry(callee).or_default();
            total.open = total.open.saturating_add(flows);
        }
        totals
    }

    /// Returns the name with this virtual address, also of a declared callee that is not deployed.
    pub fn function_at(&self, address: Ipv4Addr) -> Option<FunctionId> {
        self.switch_report.name_of(address)
    }

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
