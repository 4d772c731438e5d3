//! The autoscaler of one function.
//!
//! Samples alone change the state. [`Autoscaler::decide`] only reads it, so a decision does not
//! depend on how often it is asked for. The algorithm is Knative's, with averages over a stable and
//! a panic window; its numbers are those of OpenFaaS. All arithmetic is on whole thousandths.

mod arrival_basis;
mod counter_rate;
mod decision;
mod idle_timer;
mod limits;
mod load_history;
mod load_sample;
mod load_window;
mod panic_mode;
mod recent_maximum;
mod sample_coverage;
mod start_state;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use nearpath_types::policy::{ScaleMetric, ScaleSettings};

pub use counter_rate::CounterRate;
pub use decision::{ScaleDecision, ScaleReason};
pub use limits::{
    MAX_SAMPLE_INTERVAL, MAX_SCALE_UP_FACTOR, PANIC_GRACE, PANIC_THRESHOLD, PANIC_WINDOW,
    STABLE_WINDOW,
};
pub use load_sample::LoadSample;

use idle_timer::IdleTimer;
use limits::MAX_BACKLOG_PERCENT;
use load_history::LoadHistory;
use panic_mode::PanicMode;
use recent_maximum::RecentMaximum;
use sample_coverage::SampleCoverage;
use start_state::StartState;

/// Decides how many replicas one function should have.
///
/// It holds less than 1 KiB, whatever the load and the settings are, and no memory besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Autoscaler {
    settings: ScaleSettings,
    created_at: Instant,
    /// Latest time that was passed in. A clock that steps back stands still here.
    latest: Instant,
    decision: ScaleDecision,
    loads: LoadHistory,
    wanted: RecentMaximum,
    panic: PanicMode,
    idle: IdleTimer,
    coverage: SampleCoverage,
    starts: StartState,
}

/// Replicas that the load wants, before any delay of a scale-down.
#[derive(Debug, Clone, Copy)]
struct WantedReplicas {
    replicas: u32,
    reason: ScaleReason,
    /// Replicas that one of the windows wants: a scale-down goes no lower.
    recorded: u32,
}

impl Autoscaler {
    /// Begins with the replicas that the function has. They stay until samples tell more.
    pub fn new(settings: ScaleSettings, now: Instant, replicas: u32) -> Self {
        let replicas = match replicas {
            0 if settings.scale_to_zero => 0,
            _ => clamp_replicas(&settings, replicas),
        };
        let reason = match replicas {
            0 => ScaleReason::NoTraffic,
            _ => ScaleReason::MissingSamples,
        };
        Self {
            created_at: now,
            latest: now,
            decision: ScaleDecision { replicas, reason },
            loads: LoadHistory::new(),
            wanted: RecentMaximum::new(settings.down_window),
            panic: PanicMode::default(),
            idle: IdleTimer::default(),
            coverage: SampleCoverage::default(),
            starts: StartState::Settled,
            settings,
        }
    }

    /// Changes the settings. Replicas outside the new bounds change at once; otherwise the number
    /// falls only when samples fill the windows again.
    pub fn update_settings(&mut self, settings: ScaleSettings) {
        if settings == self.settings {
            return;
        }
        if settings.metric != self.settings.metric {
            self.loads.clear();
        }
        self.wanted = RecentMaximum::new(settings.down_window);
        self.coverage.clear();
        self.settings = settings;
        if !self.is_asleep() || !settings.scale_to_zero {
            self.decision.replicas = clamp_replicas(&settings, self.decision.replicas);
        }
    }

    /// Takes a sample. A time before that of an earlier sample counts as that of the earlier one.
    pub fn observe(&mut self, now: Instant, sample: &LoadSample) {
        let now = self.advance_clock(now);
        let has_traffic = sample.has_traffic(self.settings.metric);
        self.idle.record(now, has_traffic);
        if self.is_asleep() && has_traffic == Some(true) {
            self.wake(now);
        }
        if self.is_asleep() {
            return;
        }
        // Without its load a sample changes nothing, except that it wakes the function.
        if let Some(load) = sample.load_milli(self.settings.metric) {
            self.loads.add(load, sample.arrival_rate());
            self.coverage.record(now);
            let wanted = self.wanted_replicas(now, sample);
            self.decision = self.next_decision(now, &wanted, sample.ready);
        }
    }

    /// Returns the desired number of replicas. Calls change nothing.
    pub fn decide(&self, now: Instant) -> ScaleDecision {
        let is_stale = !self.is_asleep() && self.coverage.is_stale(now.max(self.latest));
        let reason = match is_stale && self.decision.reason != ScaleReason::FirstTraffic {
            true => ScaleReason::MissingSamples,
            false => self.decision.reason,
        };
        ScaleDecision {
            reason,
            ..self.decision
        }
    }

    fn advance_clock(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.loads.advance_to(self.age());
        self.latest
    }

    fn age(&self) -> Duration {
        self.latest.saturating_duration_since(self.created_at)
    }

    fn is_asleep(&self) -> bool {
        self.decision.replicas == 0
    }

    /// Wakes the function with its minimum of replicas. Further requests find it awake, so however
    /// many come, they share these starts.
    fn wake(&mut self, now: Instant) {
        let replicas = clamp_replicas(&self.settings, 0);
        self.decision = ScaleDecision {
            replicas,
            reason: ScaleReason::FirstTraffic,
        };
        // The idle time says nothing about the load of the first seconds.
        self.loads.clear();
        self.wanted.clear();
        self.coverage.clear();
        self.panic.clear();
        self.starts = StartState::begin(now);
    }

    /// Returns the replicas by both windows, within the limits of starts, minimum and maximum.
    fn wanted_replicas(&mut self, now: Instant, sample: &LoadSample) -> WantedReplicas {
        self.update_starts(now, sample);
        let (sudden, stable) = self.window_replicas();
        let limit = self.backlog_limit(sample.ready);
        let (sudden, is_limited) = (sudden.min(limit), sudden > limit);
        // An old load is no reason to start replicas that the newest load does not want.
        let stable = stable.min(sudden.max(self.decision.replicas));
        // At the maximum, a panic could start nothing.
        let startable = sudden.min(self.settings.max_replicas);
        let (replicas, reason) = match self.panic.update(now, startable, sample.ready) {
            true => (sudden.max(stable), ScaleReason::PanicLoad),
            false => (stable, ScaleReason::StableLoad),
        };
        let bounded = clamp_replicas(&self.settings, replicas);
        let reason = match bounded {
            _ if bounded < replicas => ScaleReason::MaxReplicas,
            _ if bounded > replicas => ScaleReason::MinReplicas,
            _ if is_limited => ScaleReason::StartsUnderWay,
            _ => reason,
        };
        WantedReplicas {
            replicas: bounded,
            reason,
            recorded: clamp_replicas(&self.settings, sudden.max(stable)),
        }
    }

    /// Returns the replicas by the panic and by the stable window.
    fn window_replicas(&self) -> (u32, u32) {
        let sudden = match has_backlog(self.settings.metric) {
            // A backlog that was served is still in the window.
            true => self.loads.sudden().min(self.loads.newest()),
            false => self.loads.sudden(),
        };
        (
            self.replicas_for(sudden),
            self.replicas_for(self.loads.stable()),
        )
    }

    /// Returns the replicas for a load in thousandths.
    fn replicas_for(&self, load: u64) -> u32 {
        // Thousandths of the target, as the load is in thousandths: the units cancel out.
        let per_replica =
            u64::from(self.settings.target.get()) * u64::from(self.settings.target_permille.max(1));
        u32::try_from(load.div_ceil(per_replica)).unwrap_or(u32::MAX)
    }

    fn update_starts(&mut self, now: Instant, sample: &LoadSample) {
        let is_ready = sample.starting == 0 && sample.ready >= self.decision.replicas;
        self.starts.update(now, is_ready);
        let keeps_up = self.replicas_for(self.loads.newest()) <= sample.ready;
        let is_settled = self.starts == StartState::Settled;
        self.loads.update_basis(is_settled && keeps_up);
    }

    /// Returns the most replicas that a load with a backlog is a reason for: those that the arrivals
    /// explain, and a multiple of the ready ones unless replicas start.
    fn backlog_limit(&self, ready: u32) -> u32 {
        if !has_backlog(self.settings.metric) {
            return u32::MAX;
        }
        let for_backlog = match self.starts {
            StartState::UnderWay(_) => 0,
            StartState::Settled => ready.saturating_mul(MAX_BACKLOG_PERCENT).div_ceil(100),
        };
        let explained = self.replicas_for(self.loads.explained());
        explained.max(for_backlog).max(self.decision.replicas)
    }

    fn next_decision(
        &mut self,
        now: Instant,
        wanted: &WantedReplicas,
        ready: u32,
    ) -> ScaleDecision {
        // The panic window counts out of panic, too: replicas for a load that comes and goes stay.
        let recent = self.wanted.record(self.age(), wanted.recorded);
        let zero = &self.settings;
        if zero.scale_to_zero
            && self.idle.is_idle_for(now, zero.zero_duration)
            && !self.panic.is_active(now)
        {
            self.starts = StartState::Settled;
            return ScaleDecision {
                replicas: 0,
                reason: ScaleReason::NoTraffic,
            };
        }
        let delayed = self.delay_scale_down(now, wanted, recent);
        let next = self.limit_step(delayed, ready);
        if next.replicas > self.decision.replicas && self.starts == StartState::Settled {
            self.starts = StartState::begin(now);
        }
        next
    }

    /// Keeps replicas that the load no longer wants, for as long as panic, gaps and the scale-down
    /// window say.
    fn delay_scale_down(
        &self,
        now: Instant,
        wanted: &WantedReplicas,
        recent: u32,
    ) -> ScaleDecision {
        let current = self.decision.replicas;
        let history = STABLE_WINDOW.max(self.settings.down_window);
        let (floor, reason) = if self.panic.is_active(now) {
            (current, ScaleReason::PanicLoad)
        } else if !self.coverage.covers(now, history) {
            (current, ScaleReason::ShortHistory)
        } else {
            (recent.min(current), ScaleReason::DownWindow)
        };
        match floor > wanted.replicas {
            true => ScaleDecision {
                // The bounds may have changed since the number was recorded.
                replicas: clamp_replicas(&self.settings, floor),
                reason,
            },
            false => ScaleDecision {
                replicas: wanted.replicas,
                reason: wanted.reason,
            },
        }
    }

    fn limit_step(&self, next: ScaleDecision, ready: u32) -> ScaleDecision {
        let largest = ready
            .max(1)
            .saturating_mul(MAX_SCALE_UP_FACTOR)
            .max(self.decision.replicas)
            .max(clamp_replicas(&self.settings, 0));
        match next.replicas > largest {
            true => ScaleDecision {
                replicas: largest,
                reason: ScaleReason::StepLimit,
            },
            false => next,
        }
    }
}

/// Returns whether the load of this metric grows while replicas start.
fn has_backlog(metric: ScaleMetric) -> bool {
    matches!(metric, ScaleMetric::Capacity | ScaleMetric::Queue)
}

/// Bounds the replicas of a function that is not scaled to zero.
fn clamp_replicas(settings: &ScaleSettings, replicas: u32) -> u32 {
    // The maximum wins where both contradict each other.
    let min = settings.min_replicas.max(1);
    replicas.max(min).min(settings.max_replicas.max(1))
}
