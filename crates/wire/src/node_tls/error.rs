//! Reasons why the files of a node cannot be used. Each text names the file, the value and the
//! remedy.

use std::path::PathBuf;
use std::time::SystemTime;

use nearpath_types::status::rfc3339::format_time;
use nearpath_types::{NodeName, SpiffeId};

/// Reasons why the files of a node cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeCredentialsError {
    /// A file is missing or unreadable.
    #[error("cannot read {}: {why}; copy the folder that `nearpath ca issue NODE` wrote, readable for this process", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        why: String,
    },
    /// A file lacks a PEM block, or its block is malformed.
    #[error("{}: missing or malformed PEM block: {block}; copy the file again, or write it with `nearpath ca issue NODE`", path.display())]
    MissingBlock {
        /// The file.
        path: PathBuf,
        /// Kind of the block.
        block: &'static str,
    },
    /// The certificate is not one of nearpath's.
    #[error("{}: cannot read the certificate: {why}; write it with `nearpath ca issue NODE`", path.display())]
    Unreadable {
        /// The certificate's file.
        path: PathBuf,
        /// Fault of the certificate.
        why: String,
    },
    /// The certificate is not for the gateway of a node.
    #[error("{}: {id} is not the gateway of a node; write a certificate with `nearpath ca issue NODE`", path.display())]
    Role {
        /// The certificate's file.
        path: PathBuf,
        /// Identity in the certificate.
        id: Box<SpiffeId>,
    },
    /// The DNS name in the certificate is not the node's name.
    #[error("{}: the certificate of node {node} has the DNS name {dns_name:?}; write it with `nearpath ca issue {node}`", path.display())]
    DnsName {
        /// The certificate's file.
        path: PathBuf,
        /// Name of the node.
        node: NodeName,
        /// DNS name in the certificate.
        dns_name: String,
    },
    /// The certificate is for another node than the one that runs.
    #[error("{}: the certificate is for {actual}, and this process is {expected}; copy the folder of this node, or restart to change its name", path.display())]
    OtherNode {
        /// The certificate's file.
        path: PathBuf,
        /// Identity in the certificate.
        actual: Box<SpiffeId>,
        /// Identity of the running node.
        expected: Box<SpiffeId>,
    },
    /// Certificate and key do not belong together.
    #[error("certificate {} and key {} do not match: {why}; copy both from one folder of `nearpath ca issue {node}`", certificate.display(), key.display())]
    KeyMismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Name of the node.
        node: NodeName,
        /// Error of rustls.
        why: String,
    },
    /// The certificate has expired.
    #[error("{}: the certificate of node {node} expired at {}; write a new one with `nearpath ca issue {node}`", path.display(), format_time(*at))]
    Expired {
        /// The certificate's file.
        path: PathBuf,
        /// Name of the node.
        node: NodeName,
        /// End of its validity.
        at: SystemTime,
    },
    /// The certificate is not valid yet.
    #[error("{}: the certificate of node {node} is not valid before {}; set the clock of this machine", path.display(), format_time(*at))]
    NotYetValid {
        /// The certificate's file.
        path: PathBuf,
        /// Name of the node.
        node: NodeName,
        /// Start of its validity.
        at: SystemTime,
    },
    /// The file of roots holds none that can be used.
    #[error("{}: {why}; copy ca.crt from the folder of `nearpath ca init`", path.display())]
    Roots {
        /// The file of roots.
        path: PathBuf,
        /// Fault of the file.
        why: String,
    },
    /// No root signed the certificate.
    #[error("no root in {} signed {}: {why}; copy both from one folder of `nearpath ca issue {node}`", roots.display(), certificate.display())]
    UnknownIssuer {
        /// The certificate's file.
        certificate: PathBuf,
        /// The file of roots.
        roots: PathBuf,
        /// Name of the node.
        node: NodeName,
        /// Error of rustls.
        why: String,
    },
}
