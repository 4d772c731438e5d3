//! of-watchdog's metrics, by its names: `http_requests_total`, `http_request_duration_seconds`,
//! `http_requests_in_flight`.

use std::time::Duration;

use http::Method;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Bucket bounds in seconds: the Go client's defaults, so that dashboards of of-watchdog fit.
const LATENCY_BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Label of a method. Unknown methods share one label, so that a caller cannot grow the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MethodLabel(&'static str);

impl From<&Method> for MethodLabel {
    fn from(method: &Method) -> Self {
        // RFC 9110 section 9.3, and PATCH (RFC 5789).
        const KNOWN: [&str; 9] = [
            "get", "post", "put", "delete", "head", "options", "patch", "connect", "trace",
        ];
        let known = KNOWN
            .into_iter()
            .find(|name| method.as_str().eq_ignore_ascii_case(name));
        Self(known.unwrap_or("unknown"))
    }
}

impl EncodeLabelValue for MethodLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        self.0.encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: u16,
    method: MethodLabel,
}

/// Metrics and their registry. The families hold locks, which one thread never contends.
#[derive(Debug)]
pub(crate) struct WatchdogMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: Family<RequestLabels, Histogram>,
    in_flight: Gauge,
    registry: Registry,
}

impl WatchdogMetrics {
    pub(crate) fn new() -> Self {
        let requests = Family::<RequestLabels, Counter>::default();
        let duration = Family::<RequestLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(LATENCY_BUCKETS)
        });
        let in_flight = Gauge::default();
        let mut registry = Registry::default();
        // Without `_total`, which the encoder appends to counters.
        registry.register(
            "http_requests",
            "Total number of HTTP requests",
            requests.clone(),
        );
        registry.register(
            "http_request_duration_seconds",
            "Seconds spent serving HTTP requests",
            duration.clone(),
        );
        registry.register(
            "http_requests_in_flight",
            "Number of HTTP requests in flight",
            in_flight.clone(),
        );
        Self {
            requests,
            duration,
            in_flight,
            registry,
        }
    }

    /// Counts a call that begins.
    pub(crate) fn begin_request(&self) {
        self.in_flight.inc();
    }

    /// Counts a call that ended with `code` after `took`.
    pub(crate) fn end_request(&self, code: u16, method: MethodLabel, took: Duration) {
        self.in_flight.dec();
        let labels = RequestLabels { code, method };
        self.duration
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        self.requests.get_or_create(&labels).inc();
    }

    /// Returns all metrics as OpenMetrics text.
    pub(crate) fn encode_text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String never fails");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_of_the_contract() {
        let metrics = WatchdogMetrics::new();
        metrics.begin_request();
        metrics.begin_request();
        metrics.end_request(200, (&Method::POST).into(), Duration::from_millis(7));
        let text = metrics.encode_text();
        for line in [
            "http_requests_total{code=\"200\",method=\"post\"} 1",
            "http_request_duration_seconds_count{code=\"200\",method=\"post\"} 1",
            "http_requests_in_flight 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn an_invented_method_is_unknown() {
        assert_eq!(
            MethodLabel::from(&Method::from_bytes(b"BREW").unwrap()),
            MethodLabel("unknown")
        );
    }
}
