//! The desired state and how it may change. Pure: a [`ControllerCommand`] meets a [`ControllerModel`] and becomes [`ModelChange`]s or a
//! [`CommandRefusal`]; nothing here knows a disk, a clock or a socket.
//!
//! The same [`ModelChange`] is what the store writes, what it reads back at start, and what brings the model in memory
//! forward, so that the two cannot drift apart.

mod command;
mod decision;
mod refusal;
mod secret_name;
#[cfg(test)]
pub(crate) mod tests;
mod validation;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::status::rfc3339;
use nearpath_types::{
    DesiredFunction, DesiredState, FunctionId, FunctionPolicy, FunctionSpec, Namespace, Revision,
};
use serde::{Deserialize, Serialize};

pub use command::{CommandDecision, CommandOutcome, ControllerCommand, ModelChange};
pub use decision::decide_command;
pub use refusal::CommandRefusal;
pub use secret_name::{InvalidSecretName, SecretId, SecretName};

/// A deployed function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployedFunction {
    /// As the tenant deployed it.
    pub spec: Arc<FunctionSpec>,
    /// Drawn from one counter for all functions that never goes back, so that a function that is deleted and deployed
    /// again is not mistaken for its predecessor.
    pub revision: Revision,
    /// Instances wanted; 0 means asleep.
    pub replicas: u32,
    /// When it was first deployed.
    #[serde(with = "rfc3339")]
    pub created_at: SystemTime,
}

impl DeployedFunction {
    /// The settings in its spec. A spec from an older version that this one no longer understands gets the defaults:
    /// what was accepted once keeps running.
    pub fn policy(&self) -> FunctionPolicy {
        FunctionPolicy::from_spec(&self.spec).unwrap_or_default()
    }
}

/// A secret's content. Its bytes never reach a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(pub Arc<[u8]>);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// Labels and annotations of a namespace; kept and shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceEntry {
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations; OpenFaaS marks its own namespaces with `openfaas: "1"`.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// Everything that the controller wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerModel {
    /// Functions by id.
    pub functions: BTreeMap<FunctionId, DeployedFunction>,
    /// Secrets by id.
    pub secrets: BTreeMap<SecretId, SecretValue>,
    /// Namespaces by name, without the default one, which always exists, unless somebody gave that one labels.
    pub namespaces: BTreeMap<Namespace, NamespaceEntry>,
    /// The last revision given to a function.
    pub revision: Revision,
}

impl ControllerModel {
    /// Takes a change in. Never fails: what may not happen was refused by [`decide`].
    pub fn apply_change(&mut self, change: ModelChange) {
        match change {
            ModelChange::PutFunction(function) => {
                drop(self.functions.insert(function.spec.id(), function))
            }
            ModelChange::DropFunction(id) => drop(self.functions.remove(&id)),
            ModelChange::PutSecret(id, value) => drop(self.secrets.insert(id, value)),
            ModelChange::DropSecret(id) => drop(self.secrets.remove(&id)),
            ModelChange::PutNamespace(name, entry) => drop(self.namespaces.insert(name, entry)),
            ModelChange::DropNamespace(name) => drop(self.namespaces.remove(&name)),
            ModelChange::Revision(revision) => self.revision = self.revision.max(revision),
        }
    }

    /// Whether the namespace exists.
    pub fn has_namespace(&self, name: &Namespace) -> bool {
        *name == Namespace::default() || self.namespaces.contains_key(name)
    }

    /// All namespaces, the default one included, in order.
    pub fn namespace_names(&self) -> BTreeSet<Namespace> {
        self.namespaces
            .keys()
            .cloned()
            .chain([Namespace::default()])
            .collect()
    }

    /// A namespace's labels and annotations; `NoConnection`: there is no such namespace.
    pub fn namespace_entry(&self, name: &Namespace) -> Option<NamespaceEntry> {
        let default_entry = || NamespaceEntry {
            annotations: BTreeMap::from([("openfaas".to_owned(), "1".to_owned())]),
            ..NamespaceEntry::default()
        };
        let is_default = *name == Namespace::default();
        self.namespaces
            .get(name)
            .cloned()
            .or_else(|| is_default.then(default_entry))
    }

    /// Functions of one namespace, in order.
    pub fn functions_in<'a>(
        &'a self,
        name: &'a Namespace,
    ) -> impl Iterator<Item = &'a DeployedFunction> {
        self.functions
            .iter()
            .filter(move |(id, _)| id.namespace == *name)
            .map(|(_, function)| function)
    }

    /// Functions that need a secret: it is mounted into them, or the node reaches destinations with it for them.
    pub fn functions_using<'a>(
        &'a self,
        secret: &'a SecretId,
    ) -> impl Iterator<Item = &'a DeployedFunction> {
        self.functions_in(&secret.namespace)
            .filter(move |function| {
                function
                    .spec
                    .needed_secrets()
                    .iter()
                    .any(|name| name == secret.name.as_str())
            })
    }

    /// The whole truth for the node.
    pub fn desired_state(&self) -> DesiredState {
        DesiredState {
            functions: self
                .functions
                .values()
                .map(|function| self.desired_function(function))
                .collect(),
        }
    }

    fn desired_function(&self, function: &DeployedFunction) -> DesiredFunction {
        let secret_content = |name: String| {
            let id = SecretId {
                namespace: function.spec.namespace.clone(),
                name: name.parse().ok()?,
            };
            self.secrets
                .get(&id)
                .map(|secret| (name, secret.0.to_vec()))
        };
        DesiredFunction {
            spec: function.spec.clone(),
            revision: function.revision,
            replicas: function.replicas,
            secrets: function
                .spec
                .needed_secrets()
                .into_iter()
                .filter_map(secret_content)
                .collect(),
        }
    }
}
