//! For a thread that waits: no event loop, no futures. What the SDKs in C and Python stand on.
//!
//! A [`Party`] is one thread. It sleeps in shared memory (futex), so a call costs one wake-up a hop. While a handler waits for an
//! answer, calls that come in are queued: one party handles one call at a time, like a worker process. HTTP comes in beside,
//! through a thread that only reads and writes it, and is handled on the party's thread like the rest.

mod answering;
mod beside;
mod crew;
mod exchange;
mod far;
mod party;
mod serve;
mod unbroken;

pub use exchange::{Exchange, Step};
pub use nearpath_domain::post::NotWanted;
pub use party::{Party, Pending};
