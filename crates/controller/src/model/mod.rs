//! Desired state and its changes. Pure: a [`ControllerCommand`] and a [`ControllerModel`] give
//! [`ModelChange`]s or a [`CommandRefusal`], without disk, clock or socket.
//!
//! The store writes the same [`ModelChange`] that it reads back at the start and that updates the
//! model in memory. So the two cannot differ.

mod address_pool;
mod address_table;
#[cfg(test)]
mod address_tests;
#[cfg(test)]
mod callee_tests;
mod command;
mod decision;
mod declared;
#[cfg(test)]
mod declared_tests;
mod desired_entries;
mod difference;
mod missing_addresses;
mod refusal;
mod secret_name;
#[cfg(test)]
pub(crate) mod tests;
mod validation;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use imbl::OrdMap;
use nearpath_types::status::rfc3339;
use nearpath_types::{
    DesiredState, FunctionId, FunctionPolicy, FunctionSpec, Namespace, NodeAddresses, NodeName,
    Revision,
};
use serde::{Deserialize, Serialize};

pub use address_pool::{AddressNumber, AddressPrefix};
use address_table::VirtualAddressTable;
pub use command::{CommandDecision, CommandOutcome, ControllerCommand, ModelChange};
pub use decision::decide_command;
pub use declared::{DeclaredFunction, DeclaredState, FolderDigest};
pub(crate) use missing_addresses::complete_addresses;
pub use refusal::CommandRefusal;
pub use secret_name::{InvalidSecretName, SecretId, SecretName};

/// A deployed function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployedFunction {
    /// Spec, as deployed by the tenant.
    pub spec: Arc<FunctionSpec>,
    /// Taken from one counter for all functions that never decreases. So a function that is deleted
    /// and deployed again differs from its predecessor.
    pub revision: Revision,
    /// Desired number of instances; 0 means asleep.
    pub replicas: u32,
    /// Time of the first deployment.
    #[serde(with = "rfc3339")]
    pub created_at: SystemTime,
    /// Content of its folder, when a source declares it; `None` for a deployment through the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderDigest>,
}

impl DeployedFunction {
    /// Settings in its spec. A spec of an older version that this one does not understand gets the
    /// defaults, for limits of scaling; the node starts no instances with them.
    pub fn policy(&self) -> FunctionPolicy {
        FunctionPolicy::from_spec(&self.spec).unwrap_or_default()
    }
}

/// Content of a secret. Its bytes never reach a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(pub Arc<[u8]>);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By hand: a derived `Debug` would print the content wherever a command is logged.
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// Labels and annotations of a namespace, stored without interpretation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceEntry {
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations; OpenFaaS marks its own namespaces with `openfaas: "1"`.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// The whole desired state. A clone shares all entries with its original, so that deciding on a copy
/// costs what the decision changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerModel {
    /// Functions by id.
    pub functions: OrdMap<FunctionId, DeployedFunction>,
    /// Secrets by id.
    pub secrets: OrdMap<SecretId, SecretValue>,
    /// Namespaces by name. The default one always exists and is included only when it has labels or
    /// annotations of its own.
    pub namespaces: OrdMap<Namespace, NamespaceEntry>,
    /// Addresses of the nodes that a source declares; empty without one.
    pub nodes: OrdMap<NodeName, String>,
    /// Last revision given to a function.
    pub revision: Revision,
    /// IPv6 prefix of all virtual addresses; `None` before the store has one.
    pub address_prefix: Option<AddressPrefix>,
    /// Virtual addresses of functions that are deployed or declared as callees.
    addresses: VirtualAddressTable,
    /// Follows from functions, secrets and addresses; every change renews the entries that it concerns.
    desired: DesiredState,
}

impl ControllerModel {
    /// Applies a change. Never fails: [`decide_command`] refused what is not allowed.
    pub fn apply_change(&mut self, change: ModelChange) {
        match change {
            ModelChange::PutFunction(function) => {
                let id = function.spec.id();
                let old = self.functions.get(&id);
                self.addresses.replace_function(old, Some(&function));
                self.functions.insert(id.clone(), function);
                self.renew_desired(&id);
            }
            ModelChange::DropFunction(id) => {
                let old = self.functions.remove(&id);
                self.addresses.replace_function(old.as_ref(), None);
                self.renew_desired(&id);
            }
            ModelChange::PutSecret(id, value) => {
                self.secrets.insert(id.clone(), value);
                self.renew_users(&id);
            }
            ModelChange::DropSecret(id) => {
                self.secrets.remove(&id);
                self.renew_users(&id);
            }
            ModelChange::PutNamespace(name, entry) => drop(self.namespaces.insert(name, entry)),
            ModelChange::DropNamespace(name) => drop(self.namespaces.remove(&name)),
            ModelChange::PutNode(name, address) => {
                self.nodes.insert(name, address);
                self.renew_nodes();
            }
            ModelChange::DropNode(name) => {
                self.nodes.remove(&name);
                self.renew_nodes();
            }
            // The maximum: the counter never decreases, in whatever order changes are applied.
            ModelChange::Revision(revision) => self.revision = self.revision.max(revision),
            ModelChange::PutAddress(id, number) => {
                self.addresses.put(id.clone(), number);
                self.renew_address(&id);
            }
            ModelChange::DropAddress(id) => {
                self.addresses.remove(&id);
                self.renew_address(&id);
            }
            ModelChange::LastAddress(number) => self.addresses.pool.set_last(number),
            ModelChange::AddressPrefix(prefix) => {
                self.address_prefix = Some(prefix);
                self.renew_addresses();
            }
        }
    }

    /// True when the namespace exists.
    pub fn has_namespace(&self, name: &Namespace) -> bool {
        *name == Namespace::default() || self.namespaces.contains_key(name)
    }

    /// All namespaces, including the default one, in order.
    pub fn namespace_names(&self) -> BTreeSet<Namespace> {
        self.namespaces
            .keys()
            .cloned()
            .chain([Namespace::default()])
            .collect()
    }

    /// Labels and annotations of a namespace; `None` when there is no such namespace.
    pub fn namespace_entry(&self, name: &Namespace) -> Option<NamespaceEntry> {
        // OpenFaaS marks namespaces that may hold functions with this annotation.
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

    /// Addresses of the nodes that a source declares.
    pub fn node_addresses(&self) -> NodeAddresses {
        let nodes = self.nodes.iter();
        nodes
            .map(|(name, address)| (name.clone(), address.clone()))
            .collect()
    }

    /// Number of a name's virtual address; `None` when none was free, or no function needs one.
    pub fn address_number(&self, name: &FunctionId) -> Option<AddressNumber> {
        self.addresses.numbers.get(name).copied()
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

    /// Functions that need a secret: as a file, or for destinations that the node reaches for them.
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
}
