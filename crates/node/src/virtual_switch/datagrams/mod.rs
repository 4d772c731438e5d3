//! Datagrams to virtual addresses without a ready instance here.
//!
//! The kernel brings them to a socket of the node in the hub (`bpf/vip.c`). [`DatagramForwarder`]
//! holds the first ones, wakes the function, and forwards the flow to one instance as long as it is
//! used. [`admission`] and [`flow_table`] decide, and [`DatagramReport`] counts.

mod admission;
mod drop_reason;
mod flow_context;
mod flow_table;
mod flow_task;
mod forwarder;
mod held_bytes;
mod receive_queue;
mod report;

pub(crate) use forwarder::DatagramForwarder;
pub(crate) use report::DatagramReport;
