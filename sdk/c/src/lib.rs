//! The C ABI of the SDK; `include/nearpath.h` is its documentation, a test compares the two.
//!
//! Everything that happens does so in [`nearpath::blocking`]; here are only the borders. The rules that C keeps to, and on which
//! every `unsafe` block here rests: a pointer is one that this library gave and was not given back, or NULL; text ends with NUL;
//! bytes are as many as is said; a party and what came through it stay on one thread. `docs/adr/0012-one-abi-for-the-sdks.md`.
//! A panic does not cross the border: it ends the process.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]
#![allow(clippy::missing_safety_doc, reason = "the rules above hold for every function; the header tells the rest")]

mod answer;
mod ask;
mod border;
mod call;
mod code;
mod draft;
mod exchange;
mod party;
mod reply;
mod request;

pub use answer::*;
pub use ask::*;
pub use call::*;
pub use code::*;
pub use draft::*;
pub use exchange::*;
pub use party::*;
pub use reply::*;
pub use request::*;
