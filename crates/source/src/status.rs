//! Status of a source, for the operator.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::Revision;

/// State that a source has applied, and its fault.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// Time of the last reading without a fault; `None`: none since this process started, so the
    /// state is the stored one.
    pub applied_at: Option<SystemTime>,
    /// Last revision of the state in use.
    pub revision: Revision,
    /// Fault of the files, with file, line and correction. The state in use is the last good one.
    pub fault: Option<Arc<str>>,
}

impl SourceStatus {
    /// Returns the time since the last reading without a fault.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        // A clock that was set back makes no negative age.
        self.applied_at
            .map(|applied| now.duration_since(applied).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_never_negative() {
        let status = SourceStatus {
            applied_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5)),
            ..SourceStatus::default()
        };
        let at = |seconds| status.age(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(7), Some(Duration::from_secs(2)));
        assert_eq!(at(1), Some(Duration::ZERO));
        assert_eq!(SourceStatus::default().age(SystemTime::now()), None);
    }
}
