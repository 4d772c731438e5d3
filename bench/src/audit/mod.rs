//! Kernel events of a request, counted by tracing: the audit of Tables I and II of the SPRIGHT
//! paper.
//!
//! [`script`] is the bpftrace program, [`tracer`] runs it, [`count`] parses its counts by process.
//! [`check`] counts with `perf stat` and `strace -c`, and [`page`] renders the page.

mod check;
mod count;
mod page;
mod script;
mod tracer;

pub(crate) use check::{TracerCheck, count_by_perf, count_by_strace};
pub(crate) use count::EventCount;
pub(crate) use page::{AuditResult, render_page};
pub(crate) use tracer::BpftraceProcess;
