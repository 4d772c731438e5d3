//! What the node counts.

use std::time::Duration;

use nearpath_daemon::metrics::Registry;
use nearpath_types::InstanceState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Phase {
    phase: String,
}

/// The node's metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    instances: Family<State, Gauge>,
    starts: Family<Outcome, Counter>,
    phases: Family<Phase, Histogram, fn() -> Histogram>,
}

/// 0.5 ms to 16 s.
fn start_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

/// Phases that are counted; an instance could make up any other name, and each name costs memory for ever.
const PHASES: &[&str] =
    &["artifact", "spawn", "init", "cgroup", "network", "root", "lockdown", "watchdog", "handler", "total"];

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let metrics = Self {
            instances: Family::default(),
            starts: Family::default(),
            phases: Family::new_with_constructor(start_buckets),
        };
        registry.with(|r| {
            r.register("nearpath_instances", "Instances on this node", metrics.instances.clone());
            r.register("nearpath_instance_starts", "Starts of instances that ended", metrics.starts.clone());
            let text = "How long the phases of instance starts took";
            r.register("nearpath_instance_start_seconds", text, metrics.phases.clone());
        });
        metrics
    }

    pub(crate) fn count(&self, states: impl Iterator<Item = InstanceState> + Clone) {
        for state in [InstanceState::Starting, InstanceState::Ready, InstanceState::Draining] {
            let count = states.clone().filter(|one| *one == state).count();
            self.instances.get_or_create(&State { state: name(state) }).set(count as i64);
        }
    }

    pub(crate) fn started(&self, well: bool) {
        let result = if well { "ready" } else { "failed" };
        self.starts.get_or_create(&Outcome { result }).inc();
    }

    pub(crate) fn phase(&self, phase: &str, took: Duration) {
        if PHASES.contains(&phase) {
            self.phases.get_or_create(&Phase { phase: phase.to_owned() }).observe(took.as_secs_f64());
        }
    }
}

fn name(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Starting => "starting",
        InstanceState::Ready => "ready",
        InstanceState::Draining => "draining",
    }
}
