//! Row of a status report, as far as filters need it.

use crate::{FunctionId, Namespace};

/// Row of a report, as far as filters need it.
pub trait StatusRow {
    /// Returns whether the row belongs to the namespace.
    fn is_in_namespace(&self, namespace: &Namespace) -> bool;

    /// Returns whether the row is about the chain or function of that name.
    fn is_about(&self, name: &FunctionId) -> bool;
}
