//! Sessions for calls in the first flight (0-RTT, RFC 9001 section 4.6), also to a worker that was
//! never contacted.
//!
//! Before a worker starts, [`mint`] runs a handshake in memory between the caller's and the
//! worker's configuration. The caller's half of the session goes to its [`CallerSessions`]. The
//! worker's half goes to its [`WorkerSessions`], together with its credentials. So the caller's
//! first packets to it can already carry a request.
//!
//! A worker removes a session entry when it is used, and each incarnation of a worker has a store
//! of its own. A recorded first flight that is sent again finds no entry, and its data is not
//! decrypted (RFC 8446 section 8.1). Therefore requests with side effects may go in the first
//! flight, too.
//!
//! Minting takes about 0.6 ms of CPU time, which must not delay calls. Minting threads therefore
//! run at niceness 10. At the lowest priority (19) they make no progress beside threads that serve
//! calls.

mod address_tokens;
mod caller_sessions;
pub mod mint;
mod provision;
mod worker_sessions;

pub use address_tokens::{TokenKey, UsedTokens};
pub use caller_sessions::CallerSessions;
pub use provision::{Provision, ProvisionError};
pub use worker_sessions::{SessionEntry, WorkerSessions};
