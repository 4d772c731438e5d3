//! Ids of instances as users read them. Ids are unique within a node alone, so a node with a name
//! puts it in front: `NODE/iX`.

use std::fmt::Display;

use crate::NodeName;

/// Separates node and instance. Neither contains it.
const SEPARATOR: char = '/';

/// Writes the id of an instance: `NODE/ID`, or `ID` on the only node.
pub fn label_instance(node: Option<&NodeName>, id: impl Display) -> String {
    match node {
        Some(node) => format!("{node}{SEPARATOR}{id}"),
        None => id.to_string(),
    }
}

/// Splits a written id into node and id.
pub fn split_instance_label(text: &str) -> (Option<&str>, &str) {
    match text.split_once(SEPARATOR) {
        Some((node, id)) => (Some(node), id),
        None => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InstanceId;

    #[test]
    fn a_label_names_node_and_instance() {
        let node: NodeName = "b.example".parse().unwrap();
        let label = label_instance(Some(&node), InstanceId(0x1f));
        assert_eq!(label, "b.example/i1f");
        assert_eq!(split_instance_label(&label), (Some("b.example"), "i1f"));
        assert_eq!(label_instance(None, InstanceId(2)), "i2");
        assert_eq!(split_instance_label("i2"), (None, "i2"));
    }
}
