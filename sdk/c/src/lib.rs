//! The C ABI of the SDK; `include/nearpath.h` is its documentation, a test compares the two.
//!
//! All logic is in [`nearpath::blocking`]; this crate only converts at the boundary. Every `unsafe` block relies on the rules for C:
//! a pointer is NULL, or came from this library and was not passed back; text ends with NUL; lengths are right; an endpoint and its
//! results stay on one thread (`docs/adr/0012-sdks-share-one-implementation-with-a-boundary-per-language.md`). A panic aborts the process instead of unwinding into C.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the rules above hold for every function; the header tells the rest"
)]

mod answer;
mod call;
mod code;
mod conversion;
mod draft;
mod endpoint;
mod exchange;
mod options;
mod reply;
mod request;
mod serving;

pub use answer::*;
pub use call::*;
pub use code::*;
pub use draft::*;
pub use endpoint::*;
pub use exchange::*;
pub use options::*;
pub use reply::*;
pub use request::*;
pub use serving::*;
