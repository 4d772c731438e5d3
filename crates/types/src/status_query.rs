//! Status queries of a node: the JSON of `GET /system/edges`, `/system/memory`, `/system/paths` and
//! `/system/pool`.
//!
//! The node implements [`StatusSource`], the API and the command line work on [`StatusReport`]:
//! neither knows the single queries.

use serde::{Deserialize, Deserializer, Serialize};

use crate::NodeName;
use crate::chain_status::{EdgeStatus, MemoryStatus, PathStatus};
use crate::pool_status::PoolStatus;
use crate::status_row::StatusRow;

/// Query of the state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusQuery {
    /// Calls and bytes per edge.
    Edges,
    /// Shared memory per chain.
    Memory,
    /// The path chosen per edge.
    Paths,
    /// Connections to destinations outside.
    Pool,
}

/// Reply to a query: its rows, a list in JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StatusReport {
    /// For [`StatusQuery::Edges`].
    Edges(Vec<EdgeStatus>),
    /// For [`StatusQuery::Memory`].
    Memory(Vec<MemoryStatus>),
    /// For [`StatusQuery::Paths`].
    Paths(Vec<PathStatus>),
    /// For [`StatusQuery::Pool`].
    Pool(Vec<PoolStatus>),
}

/// Source of replies to status queries.
pub trait StatusSource: Send + Sync + 'static {
    /// Reads the current state. Takes no longer than to look at every counter and slot; waits for
    /// no instance or disk.
    fn status(&self, query: StatusQuery) -> StatusReport;
}

impl StatusQuery {
    /// All queries.
    pub const ALL: [Self; 4] = [Self::Edges, Self::Memory, Self::Paths, Self::Pool];

    /// The last segment of the query's path in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Edges => "edges",
            Self::Memory => "memory",
            Self::Paths => "paths",
            Self::Pool => "pool",
        }
    }

    /// Reads the reply to this query.
    ///
    /// # Errors
    /// When the input is not a list of this query's rows.
    pub fn read<'de, D: Deserializer<'de>>(self, reply: D) -> Result<StatusReport, D::Error> {
        match self {
            Self::Edges => Vec::deserialize(reply).map(StatusReport::Edges),
            Self::Memory => Vec::deserialize(reply).map(StatusReport::Memory),
            Self::Paths => Vec::deserialize(reply).map(StatusReport::Paths),
            Self::Pool => Vec::deserialize(reply).map(StatusReport::Pool),
        }
    }
}

impl StatusReport {
    /// Keeps the rows for which `keep` returns true.
    pub fn retain(&mut self, keep: impl Fn(&dyn StatusRow) -> bool) {
        match self {
            Self::Edges(rows) => rows.retain(|row| keep(row)),
            Self::Memory(rows) => rows.retain(|row| keep(row)),
            Self::Paths(rows) => rows.retain(|row| keep(row)),
            Self::Pool(rows) => rows.retain(|row| keep(row)),
        }
    }

    /// Sets the node of all rows.
    pub fn set_node(&mut self, node: &NodeName) {
        match self {
            Self::Edges(rows) => rows.iter_mut().for_each(|row| row.set_node(node)),
            Self::Memory(rows) => rows.iter_mut().for_each(|row| row.set_node(node)),
            Self::Paths(rows) => rows.iter_mut().for_each(|row| row.set_node(node)),
            Self::Pool(rows) => rows.iter_mut().for_each(|row| row.set_node(node)),
        }
    }

    /// Adds the rows of another report of the same query; those of another query are dropped.
    pub fn append(&mut self, other: Self) {
        match (self, other) {
            (Self::Edges(rows), Self::Edges(more)) => rows.extend(more),
            (Self::Memory(rows), Self::Memory(more)) => rows.extend(more),
            (Self::Paths(rows), Self::Paths(more)) => rows.extend(more),
            (Self::Pool(rows), Self::Pool(more)) => rows.extend(more),
            _ => {}
        }
    }

    /// Returns whether there is no row.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Edges(rows) => rows.is_empty(),
            Self::Memory(rows) => rows.is_empty(),
            Self::Paths(rows) => rows.is_empty(),
            Self::Pool(rows) => rows.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FunctionId;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let edge = EdgeStatus {
            chain: "shop".into(),
            caller: "front.dev".into(),
            ..EdgeStatus::default()
        };
        for query in StatusQuery::ALL {
            assert!(query.read(serde_json::json!([])).unwrap().is_empty());
        }
        let report = StatusReport::Edges(vec![edge]);
        assert_eq!(
            StatusQuery::Edges
                .read(serde_json::to_value(&report).unwrap())
                .unwrap(),
            report
        );
        assert!(
            StatusQuery::Pool
                .read(serde_json::to_value(&report).unwrap())
                .is_err()
        );
    }

    #[test]
    fn rows_of_several_nodes_name_them() {
        let path = |id: &str| {
            StatusReport::Paths(vec![PathStatus {
                callee_instance: Some(id.to_owned()),
                ..PathStatus::default()
            }])
        };
        let (mut a, mut b) = (path("i1"), path("i1"));
        a.set_node(&"a".parse().unwrap());
        b.set_node(&"b".parse().unwrap());
        a.append(b);
        a.append(StatusReport::Pool(vec![PoolStatus::default()]));
        let StatusReport::Paths(rows) = a else {
            panic!("another report")
        };
        let labels: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.node.as_deref().unwrap(),
                    row.callee_instance.as_deref().unwrap(),
                )
            })
            .collect();
        assert_eq!(labels, [("a", "a/i1"), ("b", "b/i1")]);
    }

    #[test]
    fn rows_are_filtered_by_namespace_and_by_name() {
        let name = |text: &str| text.parse::<FunctionId>().unwrap();
        let path = PathStatus {
            caller: "gateway".into(),
            callee: "cart.dev".into(),
            ..PathStatus::default()
        };
        let (dev, other) = ("dev".parse().unwrap(), "other".parse().unwrap());
        assert!(path.is_in_namespace(&dev) && !path.is_in_namespace(&other));
        assert!(path.is_about(&name("cart.dev")) && !path.is_about(&name("cart.other")));
        let shared = PoolStatus {
            owner: "dev/shop".into(),
            namespace: "dev".into(),
            ..PoolStatus::default()
        };
        assert!(shared.is_about(&name("shop.dev")) && !shared.is_about(&name("cart.dev")));
        let mut report = StatusReport::Pool(vec![shared]);
        report.retain(|row| row.is_in_namespace(&other));
        assert!(report.is_empty());
    }
}
