//! Both agents in one thread, with a virtual clock and NATs as models: every kind against every kind, in bad weather; in
//! one network, behind one NAT; and with somebody between who guesses, replays and forges.
//!
//! A failure names its seed: `NEARPATH_SEED=n` runs that one alone.

mod attacks;
mod late_events;
mod matrix;
mod nat_detection;
mod network;
mod properties;
mod router;
mod same_network;
mod selection_time;
mod sites;
mod tcp;
mod world;
