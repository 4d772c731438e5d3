//! Sessions for calls in the first flight (0-RTT, RFC 9001 section 4.6), also to a worker that was never contacted.
//!
//! Before a worker starts, [`mint_session`] runs one handshake in memory between a caller's configuration and the worker's. What the caller
//! would remember of it goes to its [`CallerSessions`], what the worker would remember goes to the worker's [`WorkerSessions`], with its
//! credentials. So the caller's very first packets to it can carry a request.
//!
//! A session entry is taken out of the register when it is used, and each incarnation of a worker has a register of its own: a
//! first flight that somebody recorded and sends again finds no entry, and what it carries is not decrypted (RFC 8446 section 8.1).
//! That is why a request with side effects may go in the first flight, too.
//!
//! Minting costs CPU time, some 0.6 ms each, which calls must not miss. Whoever mints does it on one thread of a low priority that is not the
//! lowest (niceness 10): at the lowest (19) it gets nowhere beside threads that serve calls.

mod address_tokens;
mod caller_sessions;
pub mod mint;
mod provision;
mod worker_sessions;

pub use address_tokens::{TokenKey, UsedTokens};
pub use caller_sessions::CallerSessions;
pub use provision::{Provision, ProvisionError};
pub use worker_sessions::{SessionEntry, WorkerSessions};
