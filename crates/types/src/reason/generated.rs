// Code generated from contract/reasons.toml by `cargo xtask generate`. DO NOT EDIT.
//! The list of `contract/reasons.toml`.

use serde::{Deserialize, Serialize};

/// Cause of a platform error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Reason {
    /// The request is not valid HTTP or names no valid function.
    BadRequest = 1,
    /// No function of that name is deployed in that namespace.
    NoFunction = 2,
    /// The calling function has no declared edge to the function it called; or a web page of another site called the API.
    NotAllowed = 3,
    /// The path exists, but not with this method.
    MethodNotAllowed = 4,
    /// The request body is larger than the limit.
    BodyTooLarge = 5,
    /// The request's header fields are larger than the limit.
    HeadersTooLarge = 6,
    /// The request's body stopped arriving.
    SlowRequest = 7,
    /// Every instance is at its limit and the queue is full.
    Overload = 8,
    /// No instance became free in time.
    QueueTimeout = 9,
    /// The function was scaled to zero or had no ready instance, and none became ready in time.
    ColdTimeout = 10,
    /// The component is shutting down.
    Draining = 11,
    /// No connection to an instance could be made; the request was not sent.
    ConnectFailed = 12,
    /// The instance closed the connection before its response; the request may have run.
    InstanceDied = 13,
    /// The instance did not begin to answer in time.
    FirstByteTimeout = 14,
    /// The response was idle for too long and was truncated.
    IdleTimeout = 15,
    /// The request's deadline passed.
    TotalTimeout = 16,
    /// The instance aborted its response.
    ResponseTruncated = 17,
    /// The caller disconnected before the response was complete.
    CallerGone = 18,
    /// The tenant's process could not be run or ended with an error.
    FunctionFailed = 19,
    /// The tenant's process ran longer than it may.
    ExecTimeout = 20,
    /// An internal error of nearpath.
    Internal = 21,
    /// The administrator's credentials are missing or wrong.
    Unauthorized = 22,
    /// No such secret, namespace or path.
    NotFound = 23,
    /// The change contradicts what exists: it is there already, or something still uses it.
    Conflict = 24,
    /// A later version will do this.
    NotImplemented = 25,
    /// The disk under the data directory is full; nothing was changed.
    StorageFull = 26,
    /// The store had an error that it cannot recover from by itself and takes no changes until a restart.
    ReadOnly = 27,
    /// The answer is larger than the protocol's adapter (MQTT, CoAP) forwards, and was truncated.
    AnswerTooLarge = 28,
    /// The request came before the handshake was complete, and is not one that may run twice: send it again when it is (RFC 8470).
    TooEarly = 29,
    /// The last starts of the function's instances all failed; `Retry-After` names the time of the next one.
    StartFailed = 30,
    /// All connections of the address are in use. A few further ones serve `/system` and `/healthz` alone.
    ConnectionLimit = 31,
    /// Too many wrong passwords came from the caller's address: its logins are refused until the time in `Retry-After`.
    LoginLocked = 32,
    /// The node that was asked runs no instance of the function: the caller's node knows another state, and asks the next one.
    NotHere = 33,
}

impl Reason {
    /// Every reason, by number.
    pub const ALL: &'static [Self] = &[
        Self::BadRequest,
        Self::NoFunction,
        Self::NotAllowed,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::HeadersTooLarge,
        Self::SlowRequest,
        Self::Overload,
        Self::QueueTimeout,
        Self::ColdTimeout,
        Self::Draining,
        Self::ConnectFailed,
        Self::InstanceDied,
        Self::FirstByteTimeout,
        Self::IdleTimeout,
        Self::TotalTimeout,
        Self::ResponseTruncated,
        Self::CallerGone,
        Self::FunctionFailed,
        Self::ExecTimeout,
        Self::Internal,
        Self::Unauthorized,
        Self::NotFound,
        Self::Conflict,
        Self::NotImplemented,
        Self::StorageFull,
        Self::ReadOnly,
        Self::AnswerTooLarge,
        Self::TooEarly,
        Self::StartFailed,
        Self::ConnectionLimit,
        Self::LoginLocked,
        Self::NotHere,
    ];

    /// Returns the name in metrics, logs and the `X-Nearpath-Reason` header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::NoFunction => "no_function",
            Self::NotAllowed => "not_allowed",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::BodyTooLarge => "body_too_large",
            Self::HeadersTooLarge => "headers_too_large",
            Self::SlowRequest => "slow_request",
            Self::Overload => "overload",
            Self::QueueTimeout => "queue_timeout",
            Self::ColdTimeout => "cold_timeout",
            Self::Draining => "draining",
            Self::ConnectFailed => "connect_failed",
            Self::InstanceDied => "instance_died",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::ResponseTruncated => "response_truncated",
            Self::CallerGone => "caller_gone",
            Self::FunctionFailed => "function_failed",
            Self::ExecTimeout => "exec_timeout",
            Self::Internal => "internal",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::NotImplemented => "not_implemented",
            Self::StorageFull => "storage_full",
            Self::ReadOnly => "read_only",
            Self::AnswerTooLarge => "answer_too_large",
            Self::TooEarly => "too_early",
            Self::StartFailed => "start_failed",
            Self::ConnectionLimit => "connection_limit",
            Self::LoginLocked => "login_locked",
            Self::NotHere => "not_here",
        }
    }

    /// Returns the HTTP status of the response.
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::NoFunction => 404,
            Self::NotAllowed => 403,
            Self::MethodNotAllowed => 405,
            Self::BodyTooLarge => 413,
            Self::HeadersTooLarge => 431,
            Self::SlowRequest => 408,
            Self::Overload => 429,
            Self::QueueTimeout => 503,
            Self::ColdTimeout => 503,
            Self::Draining => 503,
            Self::ConnectFailed => 502,
            Self::InstanceDied => 502,
            Self::FirstByteTimeout => 504,
            Self::IdleTimeout => 504,
            Self::TotalTimeout => 504,
            Self::ResponseTruncated => 502,
            Self::CallerGone => 499,
            Self::FunctionFailed => 500,
            Self::ExecTimeout => 504,
            Self::Internal => 500,
            Self::Unauthorized => 401,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::NotImplemented => 501,
            Self::StorageFull => 507,
            Self::ReadOnly => 503,
            Self::AnswerTooLarge => 502,
            Self::TooEarly => 425,
            Self::StartFailed => 503,
            Self::ConnectionLimit => 503,
            Self::LoginLocked => 429,
            Self::NotHere => 503,
        }
    }

    /// Returns whether a retry cannot run the request twice.
    pub const fn retry_is_safe(self) -> bool {
        match self {
            Self::BadRequest => false,
            Self::NoFunction => false,
            Self::NotAllowed => false,
            Self::MethodNotAllowed => false,
            Self::BodyTooLarge => false,
            Self::HeadersTooLarge => false,
            Self::SlowRequest => true,
            Self::Overload => true,
            Self::QueueTimeout => true,
            Self::ColdTimeout => true,
            Self::Draining => true,
            Self::ConnectFailed => true,
            Self::InstanceDied => false,
            Self::FirstByteTimeout => false,
            Self::IdleTimeout => false,
            Self::TotalTimeout => false,
            Self::ResponseTruncated => false,
            Self::CallerGone => false,
            Self::FunctionFailed => false,
            Self::ExecTimeout => false,
            Self::Internal => false,
            Self::Unauthorized => false,
            Self::NotFound => false,
            Self::Conflict => false,
            Self::NotImplemented => false,
            Self::StorageFull => true,
            Self::ReadOnly => true,
            Self::AnswerTooLarge => false,
            Self::TooEarly => true,
            Self::StartFailed => true,
            Self::ConnectionLimit => true,
            Self::LoginLocked => true,
            Self::NotHere => true,
        }
    }
}
