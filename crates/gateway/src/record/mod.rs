//! Records of completed requests: exactly one [`CompletionRecord`] each, the source of metrics
//! and access log.

mod access_log;
mod completion;
mod event_totals;
mod metrics;
mod node_calls;
mod quic_totals;
mod recorder;
mod totals;

pub(crate) use access_log::AccessLog;
pub(crate) use completion::{ClientProtocol, CompletionRecord};
pub(crate) use metrics::GatewayMetrics;
pub(crate) use recorder::CompletionRecorder;
pub(crate) use totals::GatewayTotals;
