//! Commands to the model, and their results.

use std::sync::Arc;

use nearpath_types::{FunctionId, FunctionSpec, Namespace, NodeName, Revision};

use super::{
    AddressNumber, AddressPrefix, DeclaredState, DeployedFunction, NamespaceEntry, SecretId,
    SecretValue,
};

/// A command. Its fields are syntactically valid; [`super::decide_command`] checks them against the
/// model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerCommand {
    /// Deploys a function, or replaces it.
    Deploy(FunctionSpec),
    /// Replaces a function that exists.
    Update(FunctionSpec),
    /// Removes a function.
    Remove(FunctionId),
    /// Sets the desired number of instances: 0 puts the function to sleep; the function's maximum
    /// is the upper limit.
    Scale(FunctionId, u64),
    /// Scales a sleeping function to its minimum; without effect on others.
    Wake(FunctionId),
    /// Adds a secret.
    CreateSecret(SecretId, SecretValue),
    /// Changes a secret; functions that use it get a new revision.
    UpdateSecret(SecretId, SecretValue),
    /// Removes a secret that no function uses.
    RemoveSecret(SecretId),
    /// Adds a namespace.
    CreateNamespace(Namespace, NamespaceEntry),
    /// Changes a namespace's labels and annotations.
    UpdateNamespace(Namespace, NamespaceEntry),
    /// Removes an empty namespace.
    RemoveNamespace(Namespace),
    /// Replaces functions, secrets, namespaces and nodes by those of a source, all or nothing.
    ApplyDeclared(Arc<DeclaredState>),
}

/// Change of the model, as written to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelChange {
    /// A function is new or changed.
    PutFunction(DeployedFunction),
    /// A function was removed.
    DropFunction(FunctionId),
    /// A secret is new or changed.
    PutSecret(SecretId, SecretValue),
    /// A secret was removed.
    DropSecret(SecretId),
    /// A namespace is new or changed.
    PutNamespace(Namespace, NamespaceEntry),
    /// A namespace was removed.
    DropNamespace(Namespace),
    /// A node is new, or its address (`HOST:PORT`) changed.
    PutNode(NodeName, String),
    /// A node was removed.
    DropNode(NodeName),
    /// Revisions up to this one are used.
    Revision(Revision),
    /// A name has a virtual address.
    PutAddress(FunctionId, AddressNumber),
    /// A name has no virtual address any more.
    DropAddress(FunctionId),
    /// This number of a virtual address was allocated last.
    LastAddress(AddressNumber),
    /// The prefix of virtual addresses was set.
    AddressPrefix(AddressPrefix),
}

impl ModelChange {
    /// Returns whether the change only removes.
    pub(crate) fn is_removal(&self) -> bool {
        matches!(
            self,
            Self::DropFunction(_)
                | Self::DropSecret(_)
                | Self::DropNamespace(_)
                | Self::DropNode(_)
                | Self::DropAddress(_)
        )
    }
}

/// Result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutcome {
    /// Something was created.
    Created,
    /// Something was changed.
    Updated,
    /// Something was removed.
    Removed,
    /// The model had this state already.
    Unchanged,
}

/// An accepted command that is not carried out yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandDecision {
    /// Reply for the caller once the changes are on disk.
    pub outcome: CommandOutcome,
    /// Changes to write together or not at all.
    pub changes: Vec<ModelChange>,
    /// Deployed functions and declared callees without a virtual address, because none was free. The
    /// log names them once the changes are on disk.
    pub without_address: Vec<FunctionId>,
}

impl CommandDecision {
    /// Returns the decision that nothing has to change.
    pub(super) fn unchanged() -> Self {
        Self::new(CommandOutcome::Unchanged, Vec::new())
    }

    /// Returns a decision whose names all have addresses.
    pub(super) fn new(outcome: CommandOutcome, changes: Vec<ModelChange>) -> Self {
        Self {
            outcome,
            changes,
            without_address: Vec::new(),
        }
    }
}
