//! Runs the punching state machine on sockets: performs its actions and reports events to it.
//!
//! [`LocalPorts`] are bound first and stay bound: a mapped address holds for everything that leaves
//! from the port. A [`PunchDriver`] runs the agent of one session on them until both sides have a
//! direct connection, or fall back to the relay. Its connections feed a
//! [`crate::migrate::MigratingStream`].
//!
//! A task holds everything. It takes one event at a time, so nothing is read from a connection
//! that the state machine has just handed over.

mod dial;
mod hop_limit;
mod host_addresses;
mod listeners;
mod local_ports;
mod observers;
mod outcome;
mod run;
mod search;
mod settings;
mod sockets;
mod tcp;
mod udp;

pub use local_ports::LocalPorts;
pub use observers::{BindingProtocol, ObserverSet};
pub use outcome::{RelayReason, SearchOutcome};
pub use run::{PeerIntroduction, PunchDriver, SignalingChannel};
pub(crate) use search::RunningSearch;
pub use search::SearchPlan;
pub use settings::{DriverSettings, RelayPolicy};
