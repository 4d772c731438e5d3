//! How a request ends: exactly one [`Completion`] each, from which metrics and access log both come.

mod access_log;
mod completion;
mod metrics;
mod quic_totals;
mod recorder;
mod totals;

pub(crate) use access_log::AccessLog;
pub(crate) use completion::{Completion, Protocol};
pub(crate) use metrics::Metrics;
pub(crate) use recorder::Recorder;
pub(crate) use totals::Totals;
