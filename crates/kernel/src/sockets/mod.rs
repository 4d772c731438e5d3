//! What a TCP socket is set to, whom it may hear, and whether it is still open after it was given away.

mod diag;
mod lock;
mod options;
mod raw;

pub use diag::{Diag, Ends, Identity};
pub use lock::{is_locked, lock_to_peer};
pub use options::{Change, Options};
pub use raw::{State, state};
