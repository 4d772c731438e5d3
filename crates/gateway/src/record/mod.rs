//! How a request ends: exactly one [`Completion`] each, from which metrics and access log both come.

mod collector;
mod completion;
mod log;
mod quic;
mod tally;

pub(crate) use collector::{Metrics, Totals};
pub(crate) use completion::{Completion, Protocol};
pub(crate) use log::AccessLog;
pub(crate) use tally::Tally;
