//! Metrics registry of a process, in the OpenMetrics text format that Prometheus reads.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry as Inner;

/// Shared handle to the registry. The lock is taken to register and to encode, never to count.
#[derive(Debug, Clone, Default)]
pub struct MetricsRegistry(Arc<Mutex<Inner>>);

impl MetricsRegistry {
    /// Runs `f` with the registry, to register metrics.
    pub fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        // A panic while registering leaves the registry usable, so a poisoned lock is ignored.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Encodes all metrics as text (`application/openmetrics-text; version=1.0.0`).
    pub fn encode(&self) -> String {
        let mut out = String::new();
        self.with(|inner| text::encode(&mut out, inner))
            .expect("writing to a String cannot fail");
        out
    }
}

/// Encodes counters that something else keeps, each with its name (without `_total`) and help.
///
/// # Errors
/// If the text cannot be written.
pub fn encode_totals(
    to: &mut DescriptorEncoder<'_>,
    totals: &[(&str, &str, u64)],
) -> Result<(), fmt::Error> {
    for &(name, help, total) in totals {
        let counter = ConstCounter::new(total);
        let kind = counter.metric_type();
        counter.encode(to.encode_descriptor(name, help, None, kind)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn a_registered_counter_is_encoded() {
        let registry = MetricsRegistry::default();
        let counter: Counter = Counter::default();
        registry.with(|r| r.register("cakes", "Cakes eaten", counter.clone()));
        counter.inc();
        assert!(
            registry.encode().contains("cakes_total 1"),
            "{}",
            registry.encode()
        );
    }
}
