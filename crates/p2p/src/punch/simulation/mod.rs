//! Both agents in one thread, with a virtual clock and NAT models.
//!
//! Every kind meets every kind on a lossy network. Further tests cover one network, one NAT, and an
//! attacker on the path that guesses, replays and forges.
//!
//! A failure names its seed: `NEARPATH_SEED=n` runs that one alone.

mod attacks;
mod dials;
mod late_events;
mod matrix;
mod nat_detection;
mod network;
mod opening;
mod properties;
mod router;
mod same_network;
mod selection_time;
mod sites;
mod tcp;
mod world;
