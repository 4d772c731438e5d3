//! Hole punching: direct connections between workers behind NATs.
//!
//! Two workers exchange candidates through a rendezvous that both reach ([`candidate`]). They send
//! each other small authenticated probes ([`probe`], `contract/punch.md`) until one gets through
//! ([`agent`]). [`nat`] says what theory permits between two kinds of NAT. Until a direct
//! connection exists, and where none is possible, the relay carries the bytes.
//!
//! Everything here decides without a socket, a clock or a task: time is an argument, and actions
//! are returned as a list. The simulation (in tests) runs both sides against every kind of NAT.

pub mod agent;
pub mod candidate;
pub mod nat;
pub mod probe;
pub mod session;
#[cfg(test)]
mod simulation;

pub use agent::{AgentAction, AgentEvent, PunchAgent, PunchSettings};
pub use candidate::{Candidate, Transport};
pub use probe::Probe;
pub use session::PunchSession;
