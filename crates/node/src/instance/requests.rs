//! Requests of the agent to one instance.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

/// A request of the agent to stop.
pub struct StopRequest {
    /// Ends when no caller sends new requests any more.
    pub withdrawn: BoxFuture<'static, ()>,
    /// Maximum time to stop after that.
    pub timeout: Duration,
}

/// A request of the agent to freeze or to thaw the instance.
pub enum SleepRequest {
    /// Freezes it when it has no calls any more. If that takes longer than its time to stop, it stops.
    Freeze(StopRequest),
    /// Lets it go on.
    Thaw,
}

/// Requests of the agent to one instance.
pub struct InstanceRequests {
    /// Request to stop.
    pub stop: oneshot::Receiver<StopRequest>,
    /// Requests to freeze and to thaw.
    pub sleep: mpsc::UnboundedReceiver<SleepRequest>,
}
