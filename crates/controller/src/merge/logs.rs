//! Lines of several nodes in the order of their times.

use std::time::SystemTime;

use nearpath_types::instance_label::label_instance;
use nearpath_types::{FunctionId, LogLine, MissingNode, NodeLogLine, NodeName};

/// Adds the node to a line of an instance.
pub(crate) fn label_line(node: Option<&NodeName>, line: LogLine) -> NodeLogLine {
    NodeLogLine {
        line: LogLine {
            instance: label_instance(node, &line.instance),
            ..line
        },
        node: node.map(NodeName::to_string),
        error: None,
    }
}

/// Makes a line that says that lines of a node are missing.
pub(crate) fn missing_line(
    function: &FunctionId,
    missing: &MissingNode,
    now: SystemTime,
) -> NodeLogLine {
    let MissingNode { node, cause } = missing;
    NodeLogLine {
        line: LogLine {
            name: function.name.to_string(),
            namespace: function.namespace.to_string(),
            instance: node.clone(),
            timestamp: now,
            text: format!("nearpath: lines of node {node} are missing: {cause}"),
        },
        node: Some(node.clone()),
        error: Some(cause.clone()),
    }
}

/// Merges lines by time; those of one node keep their order. `tail` is the number of last lines;
/// `None`: all.
pub(crate) fn merge_logs(nodes: Vec<Vec<NodeLogLine>>, tail: Option<usize>) -> Vec<NodeLogLine> {
    let mut lines: Vec<NodeLogLine> = nodes.into_iter().flatten().collect();
    // Stable, so that equal times keep the order of their node.
    lines.sort_by_key(|line| line.line.timestamp);
    let surplus = tail.map_or(0, |tail| lines.len().saturating_sub(tail));
    lines.drain(..surplus);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn lines_of(node: &str, seconds: &[u64]) -> Vec<NodeLogLine> {
        let node: NodeName = node.parse().unwrap();
        let line = |(at, second): (usize, &u64)| LogLine {
            name: "echo".to_owned(),
            namespace: "dev".to_owned(),
            instance: "i1".to_owned(),
            timestamp: SystemTime::UNIX_EPOCH + Duration::from_secs(*second),
            text: at.to_string(),
        };
        let all = seconds.iter().enumerate().map(line);
        all.map(|line| label_line(Some(&node), line)).collect()
    }

    #[test]
    fn lines_interleave_by_time_and_name_their_node() {
        let merged = merge_logs(vec![lines_of("a", &[1, 4]), lines_of("b", &[2, 3])], None);
        let instances: Vec<_> = merged.iter().map(|line| &*line.line.instance).collect();
        assert_eq!(instances, ["a/i1", "b/i1", "b/i1", "a/i1"]);
        let last = merge_logs(
            vec![lines_of("a", &[1, 4]), lines_of("b", &[2, 3])],
            Some(1),
        );
        assert_eq!((last.len(), last[0].node.as_deref()), (1, Some("a")));
    }

    #[test]
    fn a_missing_node_has_a_line_with_the_cause() {
        let function = "echo.dev".parse().unwrap();
        let missing = MissingNode::new("b", "no answer within 2s");
        let line = missing_line(&function, &missing, SystemTime::UNIX_EPOCH);
        assert_eq!(line.error.as_deref(), Some("no answer within 2s"));
        assert_eq!(
            line.line.text,
            "nearpath: lines of node b are missing: no answer within 2s"
        );
    }

    proptest! {
        #[test]
        fn each_node_keeps_its_order(mut a in prop::collection::vec(0u64..9, 0..9), mut b in prop::collection::vec(0u64..9, 0..9)) {
            a.sort_unstable();
            b.sort_unstable();
            let merged = merge_logs(vec![lines_of("a", &a), lines_of("b", &b)], None);
            for (node, count) in [("a", a.len()), ("b", b.len())] {
                let order: Vec<usize> = merged
                    .iter()
                    .filter(|line| line.node.as_deref() == Some(node))
                    .map(|line| line.line.text.parse().unwrap())
                    .collect();
                prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
            }
            prop_assert!(merged.is_sorted_by_key(|line| line.line.timestamp));
        }
    }
}
