//! Vertical scaling of the gateway: how much CPU its threads may use follows the rate of requests.
//!
//! [`Quota`] decides, from counters alone; this task brings it the counters and the group of threads its decision, twice a
//! period of the kernel's bandwidth control (`Documentation/scheduler/sched-bwc.rst`). It runs outside of the group, so that a
//! throttled gateway cannot keep it from being freed. It wakes up twenty times a second.

mod state;

#[cfg(test)]
mod simulation;

use std::io;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nearpath_daemon::metrics::Registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::MissedTickBehavior;

pub use state::{Bounds, PERIOD, Quota, STEP, Sample};

use crate::Gateway;

/// The group that the serving threads are in.
pub trait CpuGroup: Send + Sync + 'static {
    /// Gives it so many thousandths of a core.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set(&self, millis: u64) -> io::Result<()>;
    /// CPU time that its threads have used, and how long they were throttled.
    ///
    /// # Errors
    /// When the group or a thread is gone.
    fn read(&self) -> io::Result<(Duration, Duration)>;
}

/// Shown as metrics.
#[derive(Debug, Default, Clone)]
struct Shown {
    quota: Gauge,
    cost: Gauge<f64, AtomicU64>,
    throttled: Counter<f64, AtomicU64>,
}

impl Shown {
    fn register(&self, registry: &Registry) {
        registry.with(|r| {
            let text = "Thousandths of a core that the gateway's threads may use together";
            r.register("nearpath_gateway_cpu_quota_millis", text, self.quota.clone());
            let text = "CPU seconds that a request costs the gateway, as fitted";
            r.register("nearpath_gateway_cpu_seconds_per_request", text, self.cost.clone());
            let text = "Seconds for which the gateway's threads were throttled";
            r.register("nearpath_gateway_cpu_throttled_seconds", text, self.throttled.clone());
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
        bounds: Bounds,
        registry: &Registry,
    ) -> io::Result<tokio::task::JoinHandle<()>> {
        let (quota, shown) = (Quota::new(bounds), Shown::default());
        group.set(quota.millis())?;
        shown.quota.set(quota.millis() as i64);
        shown.register(registry);
        let gateway = self.clone();
        Ok(tokio::spawn(async move {
            if let Err(error) = gateway.follow(&group, quota, &shown).await {
                let _ = group.set(bounds.ceiling); // without anybody who follows, no limit is the safe one
                tracing::warn!(%error, "the gateway's CPU quota is no longer adjusted");
            }
        }))
    }

    async fn follow(&self, group: &impl CpuGroup, mut quota: Quota, shown: &Shown) -> io::Result<()> {
        let (begin, mut periods) = (Instant::now(), tokio::time::interval(STEP));
        periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = Duration::ZERO;
        loop {
            periods.tick().await;
            let (cpu, throttled) = group.read()?;
            let before = quota.millis();
            let after = quota.tick(Sample { at: begin.elapsed(), requests: self.started(), cpu, throttled });
            if after != before {
                group.set(after)?;
                shown.quota.set(after as i64);
            }
            shown.cost.set(quota.cost());
            shown.throttled.inc_by(throttled.saturating_sub(known).as_secs_f64());
            known = throttled;
        }
    }
}
