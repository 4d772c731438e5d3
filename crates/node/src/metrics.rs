//! Metrics of the node's instances.

use std::collections::BTreeMap;
use std::time::Duration;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::{FunctionId, InstanceState};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabels {
    function_name: String,
}

/// The node's metrics.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    instances: Family<StateLabels, Gauge>,
    starts: Family<ResultLabels, Counter>,
    phases: Family<PhaseLabels, Histogram, fn() -> Histogram>,
    oom_kills: Family<FunctionLabels, Counter>,
    thaws: Counter,
}

/// Instances by state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StateCounts(BTreeMap<&'static str, i64>);

impl StateCounts {
    /// Replaces some instances by others.
    pub(crate) fn replace(&mut self, before: &[InstanceState], after: &[InstanceState]) {
        for (states, step) in [(before, -1), (after, 1)] {
            for state in states {
                *self.0.entry(state_label(*state)).or_default() += step;
            }
        }
    }

    fn of(&self, state: InstanceState) -> i64 {
        self.0.get(state_label(state)).copied().unwrap_or_default()
    }
}

/// Returns buckets from 0.5 ms to 16 s.
fn start_buckets() -> Histogram {
    // A fork takes about a millisecond, a slow interpreter some seconds.
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

/// Phases with a series. Instances could invent other names, and each series uses memory for ever.
const KNOWN_PHASES: &[&str] = &[
    "artifact", "spawn", "init", "cgroup", "network", "root", "lockdown", "watchdog", "handler",
    "total",
];

impl NodeMetrics {
    pub(crate) fn new(registry: &MetricsRegistry) -> Self {
        let metrics = Self {
            instances: Family::default(),
            starts: Family::default(),
            phases: Family::new_with_constructor(start_buckets),
            oom_kills: Family::default(),
            thaws: Counter::default(),
        };
        registry.with(|r| {
            r.register(
                "nearpath_instances",
                "Instances on this node",
                metrics.instances.clone(),
            );
            r.register(
                "nearpath_instance_starts",
                "Finished starts of instances",
                metrics.starts.clone(),
            );
            r.register(
                "nearpath_instance_oom_kills",
                "Kills of instances' processes by the kernel for lack of memory; an instance's end counts once",
                metrics.oom_kills.clone(),
            );
            r.register(
                "nearpath_instance_thaws",
                "Frozen instances that were thawed for a wake-up",
                metrics.thaws.clone(),
            );
            let text = "Duration of the phases of instance starts";
            r.register(
                "nearpath_instance_start_seconds",
                text,
                metrics.phases.clone(),
            );
        });
        metrics
    }

    pub(crate) fn set_states(&self, counts: &StateCounts) {
        for state in [
            InstanceState::Starting,
            InstanceState::Ready,
            InstanceState::Draining,
            InstanceState::Frozen,
        ] {
            let labels = StateLabels {
                state: state_label(state),
            };
            self.instances.get_or_create(&labels).set(counts.of(state));
        }
    }

    pub(crate) fn count_start(&self, succeeded: bool) {
        let result = if succeeded { "ready" } else { "failed" };
        self.starts.get_or_create(&ResultLabels { result }).inc();
    }

    pub(crate) fn count_thaw(&self) {
        self.thaws.inc();
    }

    pub(crate) fn count_oom_kill(&self, function: &FunctionId) {
        let function_name = function.to_string();
        self.oom_kills
            .get_or_create(&FunctionLabels { function_name })
            .inc();
    }

    pub(crate) fn observe_phase(&self, phase: &str, took: Duration) {
        if KNOWN_PHASES.contains(&phase) {
            self.phases
                .get_or_create(&PhaseLabels {
                    phase: phase.to_owned(),
                })
                .observe(took.as_secs_f64());
        }
    }
}

fn state_label(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Starting => "starting",
        InstanceState::Ready => "ready",
        InstanceState::Draining => "draining",
        InstanceState::Frozen => "frozen",
    }
}
