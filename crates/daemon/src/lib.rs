//! Lifecycle of a process: drain, readiness, logs and metrics.
//!
//! Readiness and drain are values. A part that must finish first holds a [`drain::DrainWatch`]; a
//! part that is not ready holds a [`ready::PendingPart`]. A forgotten one shows by name instead of
//! by a lost request.
#![forbid(unsafe_code)]

pub mod admin;
pub mod drain;
pub mod logs;
pub mod metrics;
pub mod ready;
pub mod signals;
