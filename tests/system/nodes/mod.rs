//! Several nodes, each a real `nearpath node` on a machine of its own, and faults between them.
//!
//! Each test of a protection has a control: a run without the protection, which must fail.

mod bodies;
mod certificates;
mod devices;
mod direct;
mod egress_shares;
mod events;
mod executions;
mod functions;
mod kills;
mod limits;
mod links;
mod load;
mod machines;
mod older_release;
mod refusals;
mod restarts;
mod scripted_peer;
mod source_away;
mod stream_refusals;
mod streams;
mod take_over;
pub(crate) mod two_machines;
