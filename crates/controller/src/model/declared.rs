//! Declared state: everything that a source says.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_types::{FunctionId, FunctionSpec, Namespace, NodeAddresses, NodeName};
use serde::{Deserialize, Serialize};

use super::{SecretId, SecretValue};

/// Digest of a folder's content, as its maker writes it. Equal digests mean equal contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FolderDigest(pub Arc<str>);

/// A function that a source declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredFunction {
    /// Complete spec, which the model shares.
    pub spec: Arc<FunctionSpec>,
    /// Content of its folder; `None` when the function runs on other nodes.
    pub folder: Option<FolderDigest>,
}

/// Everything that a source says. What it does not say does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredState {
    /// Name of this node. Only functions that run here need their secrets.
    pub node: NodeName,
    /// All nodes of the application, this one too.
    pub nodes: NodeAddresses,
    /// Functions by id.
    pub functions: BTreeMap<FunctionId, DeclaredFunction>,
    /// Secrets of the functions that run on this node.
    pub secrets: BTreeMap<SecretId, SecretValue>,
}

impl DeclaredState {
    /// Namespaces of functions and secrets; one may come several times.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let functions = self.functions.keys().map(|id| &id.namespace);
        functions.chain(self.secrets.keys().map(|id| &id.namespace))
    }
}
