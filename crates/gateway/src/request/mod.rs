//! A request as it arrived: its head, its body, its sender and its deadlines.

mod body;
mod deadlines;
mod digits;
pub(crate) mod grpc;
mod head;
mod ids;
mod incoming_body;
mod peer;
mod timeout;

pub(crate) use body::{Flow, Upload};
pub(crate) use deadlines::{Clock, Stage};
pub(crate) use digits::seconds;
pub use head::Asked;
pub(crate) use head::{X_CALL_ID, X_NEARPATH_PATH, X_START_TIME, X_TIMEOUT, is_stream};
pub(crate) use ids::{CallId, StartTime};
pub(crate) use incoming_body::Arriving;
pub(crate) use peer::Peer;
pub use peer::Zone;
pub use timeout::own_timeout;
