//! Edges between worker processes: `examples/edges.rs`.

mod loopback;
mod nats;
mod worker_death;
mod worker_process;
