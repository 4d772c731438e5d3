//! The time limit that a caller sets for its call.

use http::header::HeaderName;

/// A duration, as in `1.5s`: the caller waits no longer for the whole response.
pub const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");
