//! Signs certificates for instances and gateways, mints sessions between them, and renews both in
//! time.
//!
//! [`Authority`] signs. An issuer above it keeps the instances of one process. It is a state
//! machine without I/O on a thread of low priority: calls never wait for cryptography. A process
//! calls it through [`IssuerHandle`]; [`HandshakeResponder`] makes sessions between two instances.
//! Their keys and sessions exist in memory only.
//!
//! [`AuthorityFiles`] is an authority on disk. It signs the certificates of nodes.
#![forbid(unsafe_code)]

mod authority;
mod authority_files;
mod handle;
mod issuer;
mod renewal_queue;
mod responder;
mod revocations;
mod server_certificate;
mod thread;
mod trust_domain;
mod types;

pub use authority::{Authority, IssueError};
pub use authority_files::{AuthorityFiles, AuthorityFilesError, IssuedNode};
pub use handle::{InstanceIdentity, IssuerHandle, IssuerSettings, IssuerStartError};
pub use responder::HandshakeResponder;
pub use server_certificate::ServerCertificate;
