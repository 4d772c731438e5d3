//! Decides how many replicas a function should have, from samples of its load.
//!
//! An [`Autoscaler`] belongs to one function. Its driver takes a [`LoadSample`] about once a second,
//! passes it to [`Autoscaler::observe`], and carries out what [`Autoscaler::decide`] returns. A
//! request for a function that is scaled to zero is a reason for one more sample, at once.
//! [`CounterRate`] makes rates out of counters that may restart.
//!
//! Nothing here reads a clock or does I/O: the caller passes the time in. The settings are OpenFaaS's
//! labels ([`nearpath_types::policy::ScaleSettings`]), the two windows are those of Knative. The
//! module `simulation` (in tests) runs the autoscaler against generated traces and an oracle.
#![forbid(unsafe_code)]

mod autoscaler;
#[cfg(test)]
mod simulation;

pub use autoscaler::{
    Autoscaler, CounterRate, LoadSample, MAX_SAMPLE_INTERVAL, MAX_SCALE_UP_FACTOR, PANIC_GRACE,
    PANIC_THRESHOLD, PANIC_WINDOW, STABLE_WINDOW, ScaleDecision, ScaleReason,
};
