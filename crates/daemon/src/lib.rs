//! The life of a process: how it is told to drain, when it is ready, where its logs and metrics go.
//!
//! Readiness and drain are values: whoever must finish first holds a [`drain::DrainWatch`], whoever is not ready yet holds a
//! [`ready::PendingPart`]. Forgetting one shows by name instead of by a lost request.
#![forbid(unsafe_code)]

pub mod admin;
pub mod drain;
pub mod logs;
pub mod metrics;
pub mod ready;
pub mod signals;
