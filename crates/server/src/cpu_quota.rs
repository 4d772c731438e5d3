//! The CPU quota of the gateway's threads (`--gateway-cpu`).

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::Gateway;
use nearpath_gateway::quota::{CpuGroup, QuotaBounds};
use nearpath_kernel::cgroup::{NodeCgroups, ThreadCgroup};
use tokio::task::JoinHandle;

use crate::error::StartError;

/// Smallest automatic quota, in thousandths of a core: enough to notice that load rises.
const MIN_AUTO_MILLIS: u64 = 100;

/// CPU that the gateway's threads may use together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuQuota {
    /// Unlimited CPU time.
    #[default]
    Unlimited,
    /// Follows the request rate.
    Auto,
    /// Thousandths of a core.
    Millis(u64),
}

impl FromStr for CpuQuota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let millis = text
            .trim_end_matches('m')
            .parse()
            .ok()
            .filter(|millis| (10..=1_000_000).contains(millis));
        match (text, millis) {
            ("none", _) => Ok(Self::Unlimited),
            ("auto", _) => Ok(Self::Auto),
            (_, Some(millis)) => Ok(Self::Millis(millis)),
            _ => Err("expected auto, none, or thousandths of a core from 10 to 1000000".to_owned()),
        }
    }
}

/// The cgroup of the gateway's threads; dropped with the last of them.
pub(crate) struct GatewayCpu {
    group: Arc<ThreadCgroup>,
    quota: CpuQuota,
    scaler: Option<JoinHandle<()>>,
}

impl GatewayCpu {
    /// Creates the cgroup, unless CPU is unlimited.
    pub(crate) fn create(quota: CpuQuota, node: &str) -> Result<Option<Self>, StartError> {
        if quota == CpuQuota::Unlimited {
            return Ok(None);
        }
        // A threaded cgroup: the quota binds the gateway's threads, not the whole process.
        let group = ThreadCgroup::create(&NodeCgroups::detect(node))
            .map_err(StartError::component("--gateway-cpu"))?;
        if let CpuQuota::Millis(millis) = quota {
            group
                .set_quota(millis)
                .map_err(StartError::component("--gateway-cpu"))?;
        }
        Ok(Some(Self {
            group: Arc::new(group),
            quota,
            scaler: None,
        }))
    }

    /// Returns the function by which each gateway thread joins the cgroup.
    pub(crate) fn join_thread(&self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let group = self.group.clone();
        move || group.add_current_thread()
    }

    /// Starts the task that scales an automatic quota. It must not run on a thread of the cgroup,
    /// which it would throttle.
    pub(crate) fn start_scaler(
        &mut self,
        gateway: &Gateway,
        cores: usize,
        registry: &MetricsRegistry,
    ) -> Result<(), StartError> {
        if self.quota == CpuQuota::Auto {
            let bounds = QuotaBounds {
                // Never less: a throttled gateway could not see that load rises.
                floor: MIN_AUTO_MILLIS,
                ceiling: cores as u64 * 1_000,
            };
            let scaler = gateway.scale_cpu(ScaledGroup(self.group.clone()), bounds, registry);
            self.scaler = Some(scaler.map_err(StartError::component("--gateway-cpu"))?);
        }
        Ok(())
    }

    /// Stops scaling and removes the cgroup. The threads must have ended.
    pub(crate) async fn remove(self) {
        if let Some(scaler) = self.scaler {
            scaler.abort();
            let _ = scaler.await; // an error only says that it was aborted
        }
    }
}

/// The cgroup as the gateway's scaler sees it.
struct ScaledGroup(Arc<ThreadCgroup>);

impl CpuGroup for ScaledGroup {
    fn set_quota(&self, millis: u64) -> io::Result<()> {
        self.0.set_quota(millis)
    }

    fn read_usage(&self) -> io::Result<(Duration, Duration)> {
        Ok((self.0.cpu_time()?, self.0.throttled_time()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_parsed() {
        for (text, wanted) in [
            ("none", Ok(CpuQuota::Unlimited)),
            ("auto", Ok(CpuQuota::Auto)),
            ("500", Ok(CpuQuota::Millis(500))),
            ("1500m", Ok(CpuQuota::Millis(1500))),
        ] {
            assert_eq!(text.parse(), wanted, "{text}");
        }
        for bad in ["", "9", "Auto", "-1", "0.5", "1000001", "m"] {
            assert!(bad.parse::<CpuQuota>().is_err(), "{bad}");
        }
    }
}
