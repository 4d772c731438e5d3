//! Sockets under the punching machine: what it wants done is done, what happens is told to it.
//!
//! [`LocalPorts`] are bound first, and stay: what the rendezvous sees of a port holds for whatever leaves from it. A [`PunchDriver`]
//! runs the agent of one session on them until both sides have a direct connection, or the relay it is. Connections come
//! out of it as arrivals of a [`crate::migrate::MigratingStream`].
//!
//! One task holds it all: it asks the sockets for one event at a time, so that nothing is read of a connection which the
//! machine has just given away.

mod host_addresses;
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
