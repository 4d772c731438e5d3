//! For a thread that waits: no event loop, no futures. What the SDKs in C and Python stand on.
//!
//! A [`ThreadEndpoint`] is one thread. It sleeps in shared memory (futex), so a call costs one wake-up a hop. While a handler waits for an
//! answer, calls that come in are queued: one endpoint handles one call at a time, like a worker process. HTTP comes in beside,
//! through a thread that only reads and writes it, and is handled on the endpoint's thread like the rest.

mod active_response;
mod http_calls;
mod http_thread;
mod serve;
mod sigpipe;
mod streaming_call;
mod thread_endpoint;
mod worker_threads;

pub use nearpath_domain::endpoint::BodyUnwanted;
pub use streaming_call::{StreamEvent, StreamingCall};
pub use thread_endpoint::{BegunCall, ThreadEndpoint};
