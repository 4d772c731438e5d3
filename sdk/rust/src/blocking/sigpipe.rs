//! Threads that no SIGPIPE ends.
//!
//! A write to a caller that has gone raises SIGPIPE on the thread that writes, and its default action ends the process. Programs in
//! Rust, Python and JavaScript ignore it; one in C does not, and a library has no business changing what a signal does to a process.

use nix::sys::signal::{SigSet, Signal};

/// Blocks SIGPIPE for this thread, which is one of this library's own: a write says `EPIPE`, and that is handled.
pub(super) fn block_sigpipe() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGPIPE);
    let _ = set.thread_block(); // fails for a bad argument only
}
