//! Durations as OpenFaaS writes them: Go's notation (`1m30s`, `250ms`), or a bare integer of
//! seconds.

use std::time::Duration;

use jiff::SignedDuration;

/// Error of a text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid duration {0:?}: write seconds (`30`) or a number with a unit (`250ms`, `30s`, `1m30s`, `2h`)"
)]
pub struct InvalidDuration(String);

/// The longest duration accepted, 100 years: far from every overflow.
const MAX_PERIOD: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Parses a duration. Negative ones and those above 100 years are refused.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    // OpenFaaS's bare numbers are seconds, which Go's notation does not know.
    let seconds = |text: &str| text.parse().ok().map(Duration::from_secs);
    // Negative durations fail in the conversion.
    let with_units = |text: &str| {
        text.parse::<SignedDuration>()
            .ok()
            .and_then(|d| Duration::try_from(d).ok())
    };
    let trimmed = text.trim();
    seconds(trimmed)
        .or_else(|| with_units(trimmed))
        .filter(|duration| *duration <= MAX_PERIOD)
        // The original text, shortened for the message.
        .ok_or_else(|| InvalidDuration(text.chars().take(40).collect()))
}

/// Writes a duration so that [`parse_duration`] and Go read it back: whole seconds as `30s`, else
/// milliseconds, microseconds or nanoseconds.
pub fn format_duration(duration: Duration) -> String {
    match duration.as_nanos() {
        // The coarsest unit without loss, so that `parse_duration` returns the same value.
        n if n % 1_000_000_000 == 0 => format!("{}s", n / 1_000_000_000),
        n if n % 1_000_000 == 0 => format!("{}ms", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{}us", n / 1_000),
        n => format!("{n}ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn go_notation_and_bare_seconds() {
        for (text, ms) in [
            ("30", 30_000),
            ("1m30s", 90_000),
            ("250ms", 250),
            ("1.5s", 1_500),
            ("0", 0),
            ("0s", 0),
            ("2h", 7_200_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for bad in [
            "",
            "s",
            "-1s",
            "10x",
            "1s1",
            "1.2.3s",
            ".s",
            "9999999999999999999999h",
            "876001h",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_we_write_we_read(nanos in 0u64..3_000_000_000_000_000_000) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        }
        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            let _ = parse_duration(&text);
        }
    }
}
