//! A request as it arrived: head, body, sender and deadlines.

mod caller_body;
mod caller_timeout;
mod deadlines;
mod digits;
pub(crate) mod grpc;
mod ids;
mod min_rate;
mod options;
mod peer_info;
mod upload;
mod upload_progress;

pub(crate) use caller_body::CallerBody;
pub use caller_timeout::parse_caller_timeout;
pub(crate) use deadlines::{RequestDeadlines, RequestStage};
pub(crate) use digits::{DigitBuffer, seconds_value};
pub(crate) use ids::{CallId, StartTime};
pub(crate) use min_rate::{MinRate, RateAllowance};
pub(crate) use nearpath_wire::hop::timeout::X_TIMEOUT;
pub use options::RequestOptions;
pub(crate) use options::{X_CALL_ID, X_NEARPATH_PATH, X_START_TIME, names_stream};
pub use peer_info::ListenerZone;
pub(crate) use peer_info::PeerInfo;
pub(crate) use upload::RequestUpload;
pub(crate) use upload_progress::UploadProgress;
