//! Several nodes, each a real `nearpath node` on a machine of its own, and faults between them.
//!
//! Each test of a protection has a control: a run without the protection, which must fail.

mod executions;
mod functions;
mod kills;
mod links;
mod load;
mod machines;
mod restarts;
mod source_away;
