//! Desired state: the functions that the controller wants a node to run. Always complete, so that a
//! node that applies it twice, or after a restart, ends in the same state. Versions share what they
//! have in common, so the node finds the changes itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::function::FunctionSpec;
use crate::function_map::FunctionMap;
use crate::node::NodeName;
use crate::virtual_address::VirtualAddress;

/// Grows with each change of a function's spec. Instances of an older revision are replaced, not
/// edited.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Function that should run.
#[derive(Clone, PartialEq, Eq)]
pub struct DesiredFunction {
    /// Deployment.
    pub spec: Arc<FunctionSpec>,
    /// Version of the deployment.
    pub revision: Revision,
    /// Ready instances that there should be; 0 means asleep.
    pub replicas: u32,
    /// Contents of the secrets that the spec needs: [`FunctionSpec::needed_secrets`].
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// Secrets never reach a log.
impl fmt::Debug for DesiredFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}×{}", self.spec.id(), self.revision, self.replicas)
    }
}

/// All functions that should run on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// Entry per function.
    pub functions: FunctionMap<DesiredFunction>,
    /// Addresses for calls with any protocol: of these functions, and of those that they declare as
    /// callees, deployed or not. A function without one is called over HTTP only.
    pub addresses: FunctionMap<VirtualAddress>,
    /// All nodes of the application; empty: this one has no others.
    pub nodes: Arc<[NodeName]>,
}

impl FromIterator<DesiredFunction> for FunctionMap<DesiredFunction> {
    fn from_iter<I: IntoIterator<Item = DesiredFunction>>(all: I) -> Self {
        all.into_iter().map(|one| (one.spec.id(), one)).collect()
    }
}
