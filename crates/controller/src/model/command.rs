//! What may be asked of the model, and what comes of it.

use nearpath_types::{FunctionId, FunctionSpec, Namespace, Revision};

use super::{DeployedFunction, NamespaceEntry, SecretId, SecretValue};

/// A wish. Its fields are syntactically valid; whether it fits the model is for [`super::decide`] to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerCommand {
    /// Deploys a function, or replaces it.
    Deploy(FunctionSpec),
    /// Replaces a function that exists.
    Update(FunctionSpec),
    /// Removes a function.
    Remove(FunctionId),
    /// Sets how many instances are wanted: 0 puts it to sleep, more than its maximum means its maximum.
    Scale(FunctionId, u64),
    /// Scales a sleeping function to its minimum; nothing happens to any other.
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
}

/// One step of the model, as written to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelChange {
    /// A function is new or different.
    PutFunction(DeployedFunction),
    /// A function is gone.
    DropFunction(FunctionId),
    /// A secret is new or different.
    PutSecret(SecretId, SecretValue),
    /// A secret is gone.
    DropSecret(SecretId),
    /// A namespace is new or different.
    PutNamespace(Namespace, NamespaceEntry),
    /// A namespace is gone.
    DropNamespace(Namespace),
    /// Revisions up to this one have been given away.
    Revision(Revision),
}

/// What a command did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutcome {
    /// Something is new.
    Created,
    /// Something that existed is different.
    Updated,
    /// Something is gone.
    Removed,
    /// It was so already.
    Unchanged,
}

/// An accepted command: nothing of it has happened yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandDecision {
    /// What to tell the caller once the changes are on disk.
    pub outcome: CommandOutcome,
    /// To be written together or not at all.
    pub changes: Vec<ModelChange>,
}
