//! Outcomes of requests: a histogram of latencies, and failures by kind.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Longest recorded latency in nanoseconds; longer ones count as this value.
// Twice the request limit of 60 s, so that a latency from an overdue send time is still
// distinguished.
const MAX_LATENCY_NS: u64 = 120_000_000_000;

/// Failure kinds of requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestFailure {
    /// No connection could be made; the request was not sent.
    Connect,
    /// The connection broke before the response was complete.
    Broken,
    /// No response within the time limit.
    Timeout,
    /// An unexpected status, with the platform's reason if the platform returned it.
    Status(u16, String),
    /// The status was correct, the body was not.
    Body,
    /// The load generator had too many requests in flight.
    Generator,
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("no connection"),
            Self::Broken => f.write_str("connection broken"),
            Self::Timeout => f.write_str("timeout"),
            Self::Status(status, reason) if reason.is_empty() => write!(f, "status {status}"),
            Self::Status(status, reason) => write!(f, "status {status} {reason}"),
            Self::Body => f.write_str("unexpected body"),
            Self::Generator => f.write_str("too many requests in flight for the load generator"),
        }
    }
}

/// Latencies of successful requests, and failures by kind.
#[derive(Debug, Clone)]
pub(crate) struct RequestTally {
    latencies: Histogram<u64>,
    failures: BTreeMap<String, u64>,
}

impl Default for RequestTally {
    fn default() -> Self {
        let latencies = Histogram::new_with_max(MAX_LATENCY_NS, 3)
            .expect("three digits up to two minutes is a valid range");
        Self {
            latencies,
            failures: BTreeMap::new(),
        }
    }
}

impl RequestTally {
    /// Counts one request.
    pub(crate) fn record_outcome(&mut self, outcome: Result<Duration, RequestFailure>) {
        match outcome {
            Ok(took) => self
                .latencies
                // hdrhistogram's lowest value is 1. A latency above the range counts as the range's
                // end rather than as an error, so that no request is lost.
                .saturating_record((took.as_nanos() as u64).max(1)),
            Err(failure) => *self.failures.entry(failure.to_string()).or_default() += 1,
        }
    }

    /// Adds the counts of another tally.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latencies
            .add(&other.latencies)
            // `Default` is the only constructor, so ranges cannot differ.
            .expect("both have the same range");
        for (kind, count) in &other.failures {
            *self.failures.entry(kind.clone()).or_default() += count;
        }
    }

    /// Returns the number of successful requests.
    pub(crate) fn answered_count(&self) -> u64 {
        self.latencies.len()
    }

    /// Returns the number of failed requests.
    pub(crate) fn failed_count(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Returns the failures by kind.
    pub(crate) fn failures_by_kind(&self) -> &BTreeMap<String, u64> {
        &self.failures
    }

    /// Returns the latency quantile in microseconds; 0 without requests.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_failures() {
        let (mut one, mut other) = (RequestTally::default(), RequestTally::default());
        (1..=99).for_each(|us| one.record_outcome(Ok(Duration::from_micros(us))));
        other.record_outcome(Ok(Duration::from_secs(500)));
        other.record_outcome(Err(RequestFailure::Status(502, "instance_died".into())));
        other.record_outcome(Err(RequestFailure::Status(502, "instance_died".into())));
        one.merge(&other);
        assert_eq!((one.answered_count(), one.failed_count()), (100, 2));
        assert!(
            (one.latency_us(0.5) - 50.0).abs() < 0.1,
            "{}",
            one.latency_us(0.5)
        );
        assert!(
            one.latency_us(1.0) >= 119e6,
            "a latency above the range counts as its end"
        );
        assert_eq!(one.failures_by_kind()["status 502 instance_died"], 2);
        assert_eq!(RequestTally::default().latency_us(0.99), 0.0);
    }
}
