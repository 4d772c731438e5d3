//! Metrics of a source: its fault, and the age of the state in use. Read at each scrape.

use std::fmt;
use std::time::SystemTime;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_source::SourceStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

/// The status, read anew each time.
#[derive(Debug)]
struct SourceCollector(watch::Receiver<SourceStatus>);

/// Adds the status of a source to a registry.
pub(crate) fn register_collector(
    status: watch::Receiver<SourceStatus>,
    registry: &MetricsRegistry,
) {
    let collector = SourceCollector(status);
    registry.with(|registry| registry.register_collector(Box::new(collector)));
}

impl Collector for SourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.0.borrow().clone();
        encode_gauge(
            &mut encoder,
            "nearpath_source_faulty",
            "1 while the files of the source have a fault, and the last good state is in use",
            i64::from(status.fault.is_some()),
        )?;
        let Some(age) = status.age(SystemTime::now()) else {
            return Ok(()); // the state is that of an earlier process, of unknown age
        };
        encode_gauge(
            &mut encoder,
            "nearpath_source_applied_age_seconds",
            "Time since the last change of the files that was applied",
            i64::try_from(age.as_secs()).unwrap_or(i64::MAX),
        )
    }
}

fn encode_gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: i64,
) -> Result<(), fmt::Error> {
    ConstGauge::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_a_gauge() {
        let (status, watched) = watch::channel(SourceStatus::default());
        let registry = MetricsRegistry::default();
        register_collector(watched, &registry);
        assert!(registry.encode().contains("nearpath_source_faulty 0\n"));
        assert!(!registry.encode().contains("_age_seconds"));
        status.send_modify(|status| {
            status.fault = Some("wrong".into());
            status.applied_at = Some(SystemTime::now());
        });
        assert!(registry.encode().contains("nearpath_source_faulty 1\n"));
        let text = registry.encode();
        assert!(
            text.contains("nearpath_source_applied_age_seconds "),
            "{text}"
        );
    }
}
