//! Refusals of commands that do not fit the model.

use std::path::PathBuf;

use nearpath_types::policy::InvalidSetting;
use nearpath_types::{FunctionId, Namespace, Reason};

use super::SecretId;

/// A refused command; the model is unchanged. The text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    /// The function to update, scale or remove does not exist.
    #[error("there is no function {0}: deploy it first")]
    NoFunction(FunctionId),
    /// The namespace in a body or a query does not exist.
    #[error("there is no namespace {0}: create it first")]
    UnknownNamespace(Namespace),
    /// The namespace to change does not exist.
    #[error("there is no namespace {0}")]
    NoNamespace(Namespace),
    /// The namespace exists already.
    #[error("namespace {0} exists already")]
    NamespaceExists(Namespace),
    /// The namespace contains functions or secrets.
    #[error("namespace {0} still contains {1}: remove them first")]
    NamespaceNotEmpty(Namespace, String),
    /// The default namespace cannot be removed.
    #[error("namespace {0} is the default one and cannot be removed")]
    DefaultNamespace(Namespace),
    /// The secret does not exist.
    #[error("there is no secret {} in namespace {}", .0.name, .0.namespace)]
    NoSecret(SecretId),
    /// The secret exists already.
    #[error("secret {} exists already in namespace {}: update it instead", .0.name, .0.namespace)]
    SecretExists(SecretId),
    /// Functions use the secret.
    #[error("secret {} is used by {}: remove them or deploy them without it first", .0.name, .1)]
    SecretInUse(SecretId, String),
    /// The spec names secrets that do not exist.
    #[error("no such secret in namespace {0}: {1}: create it first with POST /system/secrets")]
    UnknownSecrets(Namespace, String),
    /// A label, annotation or variable is invalid.
    #[error(transparent)]
    InvalidSetting(#[from] InvalidSetting),
    /// Another field of the spec is invalid: its name, and the reason.
    #[error("{0}: {1}")]
    InvalidField(String, String),
    /// A function of a declared state has this fault, so nothing of the state is applied.
    #[error("function {0}: {1}")]
    DeclaredFunction(FunctionId, Box<CommandRefusal>),
    /// The state comes from a folder.
    #[error(
        "the state of this node comes from {path}: edit the files there instead; the node applies them by itself",
        path = .0.display()
    )]
    DeclaredIn(PathBuf),
}

impl CommandRefusal {
    /// Reason code, which also determines the HTTP status.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoFunction(_) => Reason::NoFunction,
            // 404 only for the resource in the path or body itself; an unknown namespace beside it
            // makes a bad request.
            Self::NoNamespace(_) | Self::NoSecret(_) => Reason::NotFound,
            Self::NamespaceExists(_)
            | Self::NamespaceNotEmpty(..)
            | Self::DefaultNamespace(_)
            | Self::SecretExists(_)
            | Self::SecretInUse(..)
            | Self::DeclaredIn(_) => Reason::Conflict,
            Self::UnknownNamespace(_)
            | Self::UnknownSecrets(..)
            | Self::InvalidSetting(_)
            | Self::InvalidField(..)
            | Self::DeclaredFunction(..) => Reason::BadRequest,
        }
    }
}
