//! What a TCP socket is set to, whom it may hear, how its bytes flow, and whether it is still open after it was given away.

mod diag;
mod flow;
mod lock;
mod options;
pub(crate) mod raw;
mod window;

pub use diag::{Diag, Ended, Ends, Identity};
pub use flow::{Flow, flow};
pub use lock::{is_locked, lock_to_peer};
pub(crate) use options::untold;
pub use options::{Change, Options};
pub use raw::{State, state};
pub use window::{Window, open_window};
