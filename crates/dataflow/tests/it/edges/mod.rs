//! Edges between worker processes: `examples/edges.rs`.

mod loopback;
mod nat;
mod worker_death;
mod worker_process;
