//! QUIC between our own parts: calls on streams, with mutual TLS 1.3. `contract/quic.md` says what lies on a stream.
//!
//! A caller has a [`Dialer`] for each thread; a [`Line`] is a connection, [`Line::call`] a call. A worker hands what its endpoint
//! accepts to a [`Server`]. [`config`] sets both up, [`crate::early`] spares the handshake.

mod accept;
mod answer;
mod body;
mod call;
mod caller;
pub mod code;
pub mod config;
mod dial;
mod failed;
pub mod frame;
mod heads;
mod line;
mod rest;
mod room;
mod serve;
mod silence;
pub mod udp;
mod upload;
mod visit;
mod worker;

pub use answer::Answer;
pub use body::{BodyError, Incoming};
pub use call::{Early, Terms};
pub use caller::Caller;
pub use dial::{DialError, Dialer};
pub use failed::CallError;
pub use line::Line;
pub use room::CONNECTIONS;
pub use serve::{Call, Refused, Server};
pub use upload::SendError;
pub use worker::{Worker, WorkerError};
