//! Metrics of autoscalers, with the names of OpenFaaS where it has one. Read at each scrape.

use std::fmt;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::{AutoscalingStatus, FunctionId};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::handle::AutoscalerHandle;

/// The autoscalers, read anew each time.
struct AutoscalerCollector(Arc<AutoscalerHandle>);

impl fmt::Debug for AutoscalerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AutoscalerCollector")
    }
}

/// Adds the states of autoscalers to a registry.
pub(crate) fn register_collector(autoscaler: Arc<AutoscalerHandle>, registry: &MetricsRegistry) {
    let collector = AutoscalerCollector(autoscaler);
    registry.with(|registry| registry.register_collector(Box::new(collector)));
}

impl Collector for AutoscalerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode_status(&mut encoder, &self.0.all_status())
    }
}

fn encode_status(
    to: &mut DescriptorEncoder<'_>,
    functions: &[(FunctionId, AutoscalingStatus)],
) -> Result<(), fmt::Error> {
    type StatusValue = fn(&AutoscalingStatus) -> u32;
    let gauges: [(&str, &str, StatusValue); 3] = [
        (
            "gateway_service_target_load",
            "Load per replica that the autoscaler aims at",
            |status| status.target,
        ),
        (
            "gateway_service_min",
            "Fewest replicas of an autoscaled function that does not sleep",
            |status| status.min,
        ),
        (
            "nearpath_autoscaler_replicas",
            "Replicas that the autoscaler wants",
            |status| status.replicas,
        ),
    ];
    for (name, help, value) in gauges {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (id, status) in functions {
            let function = id.to_string();
            let labels = [
                ("function_name", function.as_str()),
                ("scaling_type", status.metric.as_str()),
            ];
            let gauge = ConstGauge::new(i64::from(value(status)));
            gauge.encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
