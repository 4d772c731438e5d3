//! Decision when to warn of a certificate's end.

use std::time::{Duration, SystemTime};

/// Time between two warnings of one certificate.
const WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Time before the end from which on the log warns; a third of the certificate's life if that is
/// less.
const WARNING_WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);

/// Last warning of one certificate's end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ExpiryWarnings(Option<SystemTime>);

impl ExpiryWarnings {
    /// Returns true if a warning is due, at most once a day.
    pub(super) fn is_due(&mut self, validity: (SystemTime, SystemTime), now: SystemTime) -> bool {
        let life = validity.1.duration_since(validity.0).unwrap_or_default();
        let left = validity.1.duration_since(now).unwrap_or_default();
        let is_near = left < WARNING_WINDOW.min(life / 3);
        // A clock that was set back would silence the warning: then it is due again.
        let is_recent = self.0.is_some_and(|last| {
            now.duration_since(last)
                .is_ok_and(|since| since < WARNING_INTERVAL)
        });
        if is_near && !is_recent {
            self.0 = Some(now);
        }
        is_near && !is_recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn day(number: f64) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY.mul_f64(1000.0 + number)
    }

    fn warning_days(life: f64, until: f64) -> Vec<f64> {
        let mut warnings = ExpiryWarnings::default();
        let hours = (0..(until * 24.0) as u32).map(|hour| f64::from(hour) / 24.0);
        hours
            .filter(|at| warnings.is_due((day(0.0), day(life)), day(*at)))
            .collect()
    }

    #[test]
    fn the_log_warns_once_a_day_in_the_last_week_and_after_the_end() {
        let days = warning_days(90.0, 92.0);
        assert_eq!(days.len(), 9, "{days:?}");
        assert!(days[0] > 83.0 && days[0] < 83.1, "{days:?}");
        for pair in days.windows(2) {
            assert!((pair[1] - pair[0] - 1.0).abs() < 0.05, "{days:?}");
        }
    }

    #[test]
    fn a_short_certificate_is_warned_of_in_its_last_third() {
        let days = warning_days(3.0, 3.0);
        assert!(
            days.len() == 1 && days[0] > 2.0 && days[0] < 2.1,
            "{days:?}"
        );
    }

    #[test]
    fn a_clock_that_was_set_back_silences_nothing() {
        let (mut warnings, validity) = (ExpiryWarnings::default(), (day(0.0), day(9.0)));
        assert!(warnings.is_due(validity, day(8.0)));
        assert!(!warnings.is_due(validity, day(8.5)));
        assert!(warnings.is_due(validity, day(7.0)));
    }
}
