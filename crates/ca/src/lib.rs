//! Signs certificates for instances and gateways, mints sessions between them, and renews both in time.
//!
//! [`Authority`] signs. An issuer above it keeps the instances of one process: a state machine without I/O that runs on a thread of
//! low priority, so that calls never wait for cryptography. [`IssuerHandle`] is how the process asks it, [`HandshakeResponder`] how
//! one instance makes a session with another. Keys and sessions exist in memory only.
#![forbid(unsafe_code)]

mod authority;
mod handle;
mod issuer;
mod renewal_queue;
mod responder;
mod revocations;
mod thread;
mod types;

pub use authority::{Authority, IssueError};
pub use handle::{InstanceIdentity, IssuerHandle, IssuerSettings, IssuerStartError};
pub use responder::HandshakeResponder;
