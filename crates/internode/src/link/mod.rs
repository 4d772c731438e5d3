//! Decisions on the connection to another node. Pure: time and chance are arguments.

mod clock_samples;
mod flap_guard;
mod peer_link;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
mod timings;

pub use clock_samples::{ClockEstimate, ClockSamples, PingSample};
pub use peer_link::{LinkCommand, LinkEvent, LinkState, PeerLink};
pub use timings::LinkTimings;
pub(crate) use timings::PING_INTERVAL;
