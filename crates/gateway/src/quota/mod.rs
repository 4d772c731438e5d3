//! Vertical scaling of the gateway: how much CPU its threads may use follows the rate of requests.
//!
//! [`QuotaController`] decides, from counters alone; this task brings it the counters and the group of threads its decision, twice a
//! period of the kernel's bandwidth control (`Documentation/scheduler/sched-bwc.rst`). It runs outside of the group, so that a
//! throttled gateway cannot keep it from being freed. It wakes up twenty times a second.

mod controller;

#[cfg(test)]
mod simulation;

use std::io;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nearpath_daemon::metrics::MetricsRegistry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::MissedTickBehavior;

pub use controller::{
    BANDWIDTH_PERIOD, CpuSample, DECISION_INTERVAL, QuotaBounds, QuotaController,
};

use crate::Gateway;

/// The group that the serving threads are in.
pub trait CpuGroup: Send + Sync + 'static {
    /// Gives it so many thousandths of a core.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_quota(&self, millis: u64) -> io::Result<()>;
    /// CPU time that its threads have used, and how long they were throttled.
    ///
    /// # Errors
    /// When the group or a thread is gone.
    fn read_usage(&self) -> io::Result<(Duration, Duration)>;
}

/// Shown as metrics.
#[derive(Debug, Default, Clone)]
struct QuotaMetrics {
    quota: Gauge,
    cost_per_request: Gauge<f64, AtomicU64>,
    throttled: Counter<f64, AtomicU64>,
}

impl QuotaMetrics {
    fn register_metrics(&self, registry: &MetricsRegistry) {
        registry.with(|r| {
            let text = "Thousandths of a core that the gateway's threads may use together";
            r.register(
                "nearpath_gateway_cpu_quota_millis",
                text,
                self.quota.clone(),
            );
            let text = "CPU seconds that a request costs the gateway, as fitted";
            r.register(
                "nearpath_gateway_cpu_seconds_per_request",
                text,
                self.cost_per_request.clone(),
            );
            let text = "Seconds for which the gateway's threads were throttled";
            r.register(
                "nearpath_gateway_cpu_throttled_seconds",
                text,
                self.throttled.clone(),
            );
        });
    }
}

impl Gateway {
    /// Lets the group's quota follow the rate of requests, until the returned task is aborted or the group fails. Needs a
    /// running runtime, of which no thread is in the group.
    ///
    /// # Errors
    /// When the first quota cannot be set.
    pub fn scale_cpu(
        &self,
        group: impl CpuGroup,
        bounds: QuotaBounds,
        registry: &MetricsRegistry,
    ) -> io::Result<tokio::task::JoinHandle<()>> {
        let (quota, metrics) = (QuotaController::new(bounds), QuotaMetrics::default());
        group.set_quota(quota.quota_millis())?;
        metrics.quota.set(quota.quota_millis() as i64);
        metrics.register_metrics(registry);
        let gateway = self.clone();
        Ok(tokio::spawn(async move {
            if let Err(error) = gateway.follow_load(&group, quota, &metrics).await {
                let _ = group.set_quota(bounds.ceiling); // without anybody who follows, no limit is the safe one
                tracing::warn!(%error, "the gateway's CPU quota is no longer adjusted");
            }
        }))
    }

    async fn follow_load(
        &self,
        group: &impl CpuGroup,
        mut quota: QuotaController,
        metrics: &QuotaMetrics,
    ) -> io::Result<()> {
        let (begin, mut periods) = (Instant::now(), tokio::time::interval(DECISION_INTERVAL));
        periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_throttled = Duration::ZERO;
        loop {
            periods.tick().await;
            let (cpu, throttled) = group.read_usage()?;
            let before = quota.quota_millis();
            let after = quota.decide_quota(CpuSample {
                at: begin.elapsed(),
                requests: self.started_count(),
                cpu,
                throttled,
            });
            if after != before {
                group.set_quota(after)?;
                metrics.quota.set(after as i64);
            }
            metrics.cost_per_request.set(quota.cost_per_request());
            metrics
                .throttled
                .inc_by(throttled.saturating_sub(last_throttled).as_secs_f64());
            last_throttled = throttled;
        }
    }
}
