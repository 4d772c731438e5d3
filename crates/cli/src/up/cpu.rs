//! How much CPU the gateway's threads may use: `--gateway-cpu`.

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::metrics::Registry;
use nearpath_gateway::Gateway;
use nearpath_gateway::quota::{Bounds, CpuGroup};
use nearpath_kernel::cgroup::{Cgroups, ThreadGroup};
use tokio::task::JoinHandle;

use super::plan::UpError;

/// What the gateway has while nothing happens, in thousandths of a core.
const FLOOR: u64 = 100;

/// As typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayCpu {
    /// As much as there is.
    None,
    /// It follows the rate of requests.
    Auto,
    /// So many thousandths of a core, always.
    Millis(u64),
}

impl FromStr for GatewayCpu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let millis = text.trim_end_matches('m').parse().ok().filter(|millis| (10..=1_000_000).contains(millis));
        match (text, millis) {
            ("none", _) => Ok(Self::None),
            ("auto", _) => Ok(Self::Auto),
            (_, Some(millis)) => Ok(Self::Millis(millis)),
            _ => Err("write auto, none, or thousandths of a core from 10 to 1000000".to_owned()),
        }
    }
}

/// The group of the gateway's threads while it lives.
pub(super) struct Cpu {
    group: Arc<ThreadGroup>,
    wanted: GatewayCpu,
    follows: Option<JoinHandle<()>>,
}

impl Cpu {
    /// Makes the group, where one is asked for.
    pub(super) fn new(wanted: GatewayCpu, node: &str) -> Result<Option<Self>, UpError> {
        if wanted == GatewayCpu::None {
            return Ok(None);
        }
        let group = ThreadGroup::create(&Cgroups::detect(node)).map_err(UpError::part("--gateway-cpu"))?;
        if let GatewayCpu::Millis(millis) = wanted {
            group.set(millis).map_err(UpError::part("--gateway-cpu"))?;
        }
        Ok(Some(Self { group: Arc::new(group), wanted, follows: None }))
    }

    /// What each thread does before it serves.
    pub(super) fn enter(&self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let group = self.group.clone();
        move || group.enter()
    }

    /// Lets the limit follow the load from now on, where that is asked for. Needs a running runtime whose threads have not.
    pub(super) fn begin(&mut self, gateway: &Gateway, cores: usize, registry: &Registry) -> Result<(), UpError> {
        if self.wanted == GatewayCpu::Auto {
            let bounds = Bounds { floor: FLOOR, ceiling: cores as u64 * 1_000 };
            let follows = gateway.scale_cpu(Group(self.group.clone()), bounds, registry);
            self.follows = Some(follows.map_err(UpError::part("--gateway-cpu"))?);
        }
        Ok(())
    }

    /// After the last thread has ended: the group goes.
    pub(super) async fn end(self) {
        if let Some(follows) = self.follows {
            follows.abort();
            let _ = follows.await; // it was told to
        }
    }
}

/// The seam between the gateway, which decides, and the kernel.
struct Group(Arc<ThreadGroup>);

impl CpuGroup for Group {
    fn set(&self, millis: u64) -> io::Result<()> {
        self.0.set(millis)
    }

    fn read(&self) -> io::Result<(Duration, Duration)> {
        Ok((self.0.used()?, self.0.throttled()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_it_is_typed() {
        for (text, wanted) in [
            ("none", Ok(GatewayCpu::None)),
            ("auto", Ok(GatewayCpu::Auto)),
            ("500", Ok(GatewayCpu::Millis(500))),
            ("1500m", Ok(GatewayCpu::Millis(1500))),
        ] {
            assert_eq!(text.parse(), wanted, "{text}");
        }
        for bad in ["", "9", "Auto", "-1", "0.5", "1000001", "m"] {
            assert!(bad.parse::<GatewayCpu>().is_err(), "{bad}");
        }
    }
}
