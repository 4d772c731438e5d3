//! Direct connections between functions behind NATs.
//!
//! Two workers that cannot be reached tell each other, through a rendezvous that both reach, where they might be
//! ([`any_candidate`]), and send each other small authentic messages ([`new_probe`], `contract/punch.md`) until one gets through
//! ([`new_agent`]). What theory permits between two kinds of NAT is in [`detect_nat`]. Until a direct way is found, and where there
//! is none, the relay carries the bytes.
//!
//! Everything here is decided without a socket, a clock or a task: time is an argument, and what is to be done comes out
//! as a list. The simulation (in tests) runs both sides against every kind of NAT.

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
