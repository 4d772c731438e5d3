//! Row of a status report, as far as filters and merges need it.

use crate::{FunctionId, Namespace, NodeName};

/// Row of a report, as far as filters and merges need it.
pub trait StatusRow {
    /// Sets the node that the row is about, and puts its name before ids of instances.
    fn set_node(&mut self, node: &NodeName);

    /// Returns whether the row belongs to the namespace.
    fn is_in_namespace(&self, namespace: &Namespace) -> bool;

    /// Returns whether the row is about the chain or function of that name.
    fn is_about(&self, name: &FunctionId) -> bool;
}
