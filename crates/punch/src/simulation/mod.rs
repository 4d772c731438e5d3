//! Both agents in one thread, with a virtual clock and NATs as models: every kind against every kind, in bad weather; in
//! one network, behind one NAT; and with somebody between who guesses, replays and forges.
//!
//! A failure names its seed: `NEARPATH_SEED=n` runs that one alone.

mod hostile;
mod kind_seen;
mod kinds;
mod late;
mod laws;
mod matrix;
mod near;
mod network;
mod router;
mod soon;
mod tcp;
mod world;
