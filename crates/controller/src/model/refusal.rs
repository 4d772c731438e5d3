//! Why a command does not fit the model.

use nearpath_types::policy::InvalidSetting;
use nearpath_types::{FunctionId, Namespace, Reason};

use super::SecretId;

/// A refused command: the model is as it was. The text is for whoever sent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    /// Nothing to update, scale or remove.
    #[error("there is no function {0}: deploy it first")]
    NoFunction(FunctionId),
    /// The namespace in a body or a query does not exist.
    #[error("there is no namespace {0}: create it first")]
    UnknownNamespace(Namespace),
    /// The namespace that should be changed does not exist.
    #[error("there is no namespace {0}")]
    NoNamespace(Namespace),
    /// It is there already.
    #[error("namespace {0} exists already")]
    NamespaceExists(Namespace),
    /// It still holds something.
    #[error("namespace {0} still holds {1}: remove them first")]
    NamespaceNotEmpty(Namespace, String),
    /// It cannot go.
    #[error("namespace {0} is the default one and cannot be removed")]
    DefaultNamespace(Namespace),
    /// No such secret.
    #[error("there is no secret {} in namespace {}", .0.name, .0.namespace)]
    NoSecret(SecretId),
    /// It is there already.
    #[error("secret {} exists already in namespace {}: update it instead", .0.name, .0.namespace)]
    SecretExists(SecretId),
    /// Functions are using it.
    #[error("secret {} is used by {}: remove them or deploy them without it first", .0.name, .1)]
    SecretInUse(SecretId, String),
    /// The spec names secrets that do not exist.
    #[error("no such secret in namespace {0}: {1}: create it first with POST /system/secrets")]
    UnknownSecrets(Namespace, String),
    /// A label, annotation or variable is not understood.
    #[error(transparent)]
    InvalidSetting(#[from] InvalidSetting),
    /// Another part of the spec is not understood: which, and why.
    #[error("{0}: {1}")]
    InvalidField(String, String),
}

impl CommandRefusal {
    /// The reason, which also gives the HTTP status.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoFunction(_) => Reason::NoFunction,
            Self::NoNamespace(_) | Self::NoSecret(_) => Reason::NotFound,
            Self::NamespaceExists(_)
            | Self::NamespaceNotEmpty(..)
            | Self::DefaultNamespace(_)
            | Self::SecretExists(_)
            | Self::SecretInUse(..) => Reason::Conflict,
            Self::UnknownNamespace(_)
            | Self::UnknownSecrets(..)
            | Self::InvalidSetting(_)
            | Self::InvalidField(..) => Reason::BadRequest,
        }
    }
}
