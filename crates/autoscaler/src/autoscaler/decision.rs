//! Decision on the number of replicas, and its reason.

use std::fmt;

/// Desired replicas of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleDecision {
    /// Number of replicas that should be started or ready.
    pub replicas: u32,
    /// Reason for this number.
    pub reason: ScaleReason,
}

/// Reason for a number of replicas. Its text completes "12 replicas: …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleReason {
    /// The average load of the stable window wants so many.
    StableLoad,
    /// The load of the panic window wants so many, or has wanted them within the panic grace.
    PanicLoad,
    /// The scale-down window still holds a larger number than the load wants.
    DownWindow,
    /// Samples are missing, so the number stays.
    MissingSamples,
    /// The samples after a gap do not fill the windows yet, so the number does not fall.
    ShortHistory,
    /// Replicas that start have to be ready first.
    StartsUnderWay,
    /// One decision may not want more.
    StepLimit,
    /// The minimum is more than the load wants.
    MinReplicas,
    /// The maximum is less than the load wants.
    MaxReplicas,
    /// The first traffic wakes a function that was scaled to zero.
    FirstTraffic,
    /// The function is scaled to zero.
    NoTraffic,
}

impl fmt::Display for ScaleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StableLoad => "average load",
            Self::PanicLoad => "sudden load",
            Self::DownWindow => "largest number within com.openfaas.scale.down.window",
            Self::MissingSamples => "unchanged, the load is not known",
            Self::ShortHistory => "unchanged, the load is not known for long enough",
            Self::StartsUnderWay => "replicas that start have to be ready first",
            Self::StepLimit => "limit of one step",
            Self::MinReplicas => "com.openfaas.scale.min",
            Self::MaxReplicas => "com.openfaas.scale.max",
            Self::FirstTraffic => "first traffic of a sleeping function",
            Self::NoTraffic => "no traffic for com.openfaas.scale.zero-duration",
        })
    }
}
