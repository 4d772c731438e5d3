//! Placement of a group's instances on a shared processor: a pure decision over measurements.
//!
//! A wake-up on the same processor costs a fifth of one across processors, so a small chain is
//! faster on one. A chain that burns CPU must not stay there while others idle.
//! [`GroupCpu::decide_cpu`] is called periodically with the load of the group and the processors.
//! It assigns a processor to a small chain. When that gets full, short calls are tried for one
//! round on all processors, and the placement with more calls stays. Groups of longer calls leave
//! at once. After each leave the next trial comes later.
//!
//! A lone function, without a chain, is a group of its own. It gets a processor only by a trial in
//! which its calls cost less, and keeps it while they are short (decision 98). The gateway's thread
//! for the calls of a chain follows it ([`ThreadCpu`], decision 97). [`placer`] measures and moves.

mod gateway_cpus;
pub(crate) mod group;
mod group_cpu;
mod limits;
mod load;
mod pause;
pub(crate) mod placer;
#[cfg(test)]
mod simulation;
mod thread_cpu;
mod usage;

pub use group_cpu::GroupCpu;
pub use load::{CpuLoad, FunctionLoad, GroupLoad};
pub use thread_cpu::{ThreadCpu, ThreadLoad};
