//! Paths of calls to other nodes: the path to that node, then the path inside it.

use std::collections::HashMap;

use nearpath_types::chain_status::{GATEWAY_NAME, PathStatus};

/// Replaces each row that leads to another node by one for each of its instances, with the path
/// inside that node. The other node's gateway makes the second part of the call, so its rows say
/// how.
///
/// A row stays as it is while the other node did not answer, or has no ready instance. So does a row
/// that names the instance: the call goes there directly.
pub(crate) fn join_paths(rows: Vec<PathStatus>) -> Vec<PathStatus> {
    let last_parts = last_parts(&rows);
    let joined = rows.into_iter().flat_map(|row| {
        let key = row
            .callee_node
            .clone()
            .filter(|_| row.callee_instance.is_none())
            .map(|node| (node, row.callee.clone()));
        let inside = key.and_then(|key| last_parts.get(&key));
        match inside {
            Some(parts) => parts.iter().map(|part| join(&row, part)).collect(),
            None => vec![row],
        }
    });
    joined.collect()
}

/// Returns the calls of each node's gateway to its own instances, by node and function.
fn last_parts(rows: &[PathStatus]) -> HashMap<(String, String), Vec<PathStatus>> {
    let mut parts: HashMap<_, Vec<_>> = HashMap::new();
    for row in rows {
        let is_call_inside = row.caller == GATEWAY_NAME
            && row.callee_node.is_none()
            && row.callee_instance.is_some();
        if let Some(node) = row.node.clone().filter(|_| is_call_inside) {
            let key = (node, row.callee.clone());
            parts.entry(key).or_default().push(row.clone());
        }
    }
    parts
}

fn join(row: &PathStatus, inside: &PathStatus) -> PathStatus {
    PathStatus {
        callee_instance: inside.callee_instance.clone(),
        inner_path: inside.path.clone(),
        inner_obstacle: inside.obstacle.clone(),
        inner_reason: inside.reason.clone(),
        ..row.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn row(node: &str, caller: &str, to: Option<&str>) -> PathStatus {
        PathStatus {
            node: text(node),
            caller: caller.to_owned(),
            callee: "cart.openfaas-fn".to_owned(),
            path: text("quic"),
            callee_node: to.map(str::to_owned),
            ..PathStatus::default()
        }
    }

    fn inside(node: &str, instance: &str, path: &str) -> PathStatus {
        PathStatus {
            callee_instance: text(instance),
            path: text(path),
            ..row(node, GATEWAY_NAME, None)
        }
    }

    #[test]
    fn a_call_to_another_node_shows_each_instance_there() {
        let rows = vec![
            row("a", "front.openfaas-fn", Some("b")),
            inside("b", "b/i1", "shm"),
            inside("b", "b/i2", "http"),
            inside("c", "c/i1", "shm"),
        ];
        let joined = join_paths(rows);
        let first: Vec<_> = joined[..2]
            .iter()
            .map(|row| {
                let to = row.callee_instance.as_deref().unwrap();
                (
                    to,
                    row.path.as_deref().unwrap(),
                    row.inner_path.as_deref().unwrap(),
                )
            })
            .collect();
        assert_eq!(first, [("b/i1", "quic", "shm"), ("b/i2", "quic", "http")]);
        assert_eq!(joined.len(), 5, "the rows of other gateways stay");
        assert!(joined[2..].iter().all(|row| row.inner_path.is_none()));
    }

    #[test]
    fn a_direct_call_has_no_second_part() {
        let direct = PathStatus {
            callee_instance: text("b/i1"),
            ..row("a", "front.openfaas-fn", Some("b"))
        };
        let rows = vec![direct, inside("b", "b/i1", "shm")];
        assert_eq!(join_paths(rows.clone()), rows);
    }

    #[test]
    fn a_row_to_a_node_that_did_not_answer_stays() {
        let rows = vec![row("a", GATEWAY_NAME, Some("b"))];
        assert_eq!(join_paths(rows.clone()), rows);
    }
}
