//! Vertical scaling of the gateway: its CPU quota follows the request rate.
//!
//! [`QuotaController`] decides from counters alone. This task reads the counters and applies the
//! decision twice per period of the kernel's bandwidth control
//! (`Documentation/scheduler/sched-bwc.rst`). It runs outside of the cgroup, so that a throttled
//! gateway cannot delay it. It wakes up twenty times a second.

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

/// The cgroup of the serving threads.
pub trait CpuGroup: Send + Sync + 'static {
    /// Sets the quota in thousandths of a core.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn set_quota(&self, millis: u64) -> io::Result<()>;
    /// Returns the CPU time used by its threads, and the time for which they were throttled.
    ///
    /// # Errors
    /// If the cgroup or a thread is gone.
    fn read_usage(&self) -> io::Result<(Duration, Duration)>;
}

/// Metrics of the CPU quota.
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
            let text = "CPU seconds per request, as fitted";
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
    /// Adjusts the cgroup's quota to the request rate until the returned task is aborted or the
    /// cgroup fails. Needs a running runtime without threads in the cgroup.
    ///
    /// # Errors
    /// If the first quota cannot be set.
    pub fn scale_cpu(
        &self,
        group: impl CpuGroup,
        bounds: QuotaBounds,
        registry: &MetricsRegistry,
    ) -> io::Result<tokio::task::JoinHandle<()>> {
        let (quota, metrics) = (QuotaController::new(bounds), QuotaMetrics::default());
        // Set once before the task starts, so that a cgroup that cannot be controlled fails the
        // start.
        group.set_quota(quota.quota_millis())?;
        metrics.quota.set(quota.quota_millis() as i64);
        metrics.register_metrics(registry);
        let gateway = self.clone();
        Ok(tokio::spawn(async move {
            if let Err(error) = gateway.follow_load(&group, quota, &metrics).await {
                // Without adjustment, no limit is safer than a low one.
                let _ = group.set_quota(bounds.ceiling);
                tracing::warn!(%error, "CPU quota: adjustment failed, the ceiling applies from now on");
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
        // A late step must not be followed by a burst: samples of almost no time say nothing.
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
            // Each write makes the kernel hand out a new period, so an unchanged quota is not
            // written.
            if after != before {
                group.set_quota(after)?;
                metrics.quota.set(after as i64);
            }
            metrics.cost_per_request.set(quota.cost_per_request());
            // The kernel counts from the start of the cgroup, the metric in increments.
            metrics
                .throttled
                .inc_by(throttled.saturating_sub(last_throttled).as_secs_f64());
            last_throttled = throttled;
        }
    }
}
