//! What a request makes the kernel do, counted by tracing and not by hand: the audit of the SPRIGHT paper's Tables I and II.
//!
//! [`script`] is what bpftrace runs, [`tracer`] starts and reads it, [`count`] is what came out, by process, [`check`]
//! counts the same by `perf stat` and `strace -c`, [`page`] writes it down.

mod check;
mod count;
mod page;
mod script;
mod tracer;

pub(crate) use check::{Check, by_perf, by_strace};
pub(crate) use count::Count;
pub(crate) use page::{Audit, render};
pub(crate) use tracer::Tracer;
