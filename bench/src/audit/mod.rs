//! Kernel events of a request, counted by tracing: the audit of the SPRIGHT paper's Tables I and
//! II.
//!
//! [`script`] is what bpftrace runs, [`tracer`] starts and reads it, [`count`] is what came out, by
//! process, [`check`] counts the same by `perf stat` and `strace -c`, [`page`] writes it down.

mod check;
mod count;
mod page;
mod script;
mod tracer;

pub(crate) use check::{TracerCheck, count_by_perf, count_by_strace};
pub(crate) use count::EventCount;
pub(crate) use page::{AuditResult, render_page};
pub(crate) use tracer::BpftraceProcess;
