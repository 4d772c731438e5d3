//! The state that all serving threads share.

use std::sync::Arc;

use http::HeaderValue;
use nearpath_wire::quic::Caller;
use tokio::sync::watch;

use crate::control::Control;
use crate::function::Table;
use crate::record::{AccessLog, Totals};

/// The state that all serving threads share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub table: Arc<Table>,
    pub control: Arc<dyn Control>,
    pub totals: Arc<Totals>,
    pub log: Option<AccessLog>,
    pub served_by: HeaderValue,
    pub caller: Option<watch::Receiver<Caller>>,
}
