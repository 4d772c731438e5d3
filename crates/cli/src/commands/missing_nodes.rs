//! Nodes that did not answer, as commands name them: a line on standard error, and an entry in
//! JSON.

use nearpath_types::MissingNode;
use serde::Serialize;
use serde_json::{Value, json};

/// Names missing nodes on standard error. The command succeeds: the other nodes have answered.
pub(super) fn warn_missing(missing: &[MissingNode]) {
    for one in missing {
        // Causes come from other machines: control characters could steer the terminal.
        let text = format!("nearpath: node {} is missing: {}", one.node, one.cause);
        eprintln!("{}", text.replace(char::is_control, " "));
    }
}

/// Returns rows as JSON, with an entry `{node, error}` for each missing node.
pub(super) fn rows_with_missing(rows: &impl Serialize, missing: &[MissingNode]) -> Value {
    let mut rows = json!(rows);
    if let Some(rows) = rows.as_array_mut() {
        let entries = missing.iter();
        rows.extend(entries.map(|one| json!({ "node": one.node, "error": one.cause })));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_an_entry_for_each_missing_node() {
        let missing = [MissingNode::new("b", "no answer within 2s")];
        let rows = rows_with_missing(&[json!({ "chain": "shop" })], &missing);
        let wanted = json!([{ "chain": "shop" }, { "node": "b", "error": "no answer within 2s" }]);
        assert_eq!(rows, wanted);
    }
}
