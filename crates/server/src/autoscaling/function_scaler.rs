//! Autoscaler of one function, with the counters of its last poll. Time is an argument.

use std::time::{Duration, Instant};

use nearpath_autoscaler::{Autoscaler, CounterRate, LoadSample, ScaleReason};
use nearpath_types::policy::{ScaleMetric, ScaleSettings};
use nearpath_types::{AutoscalingStatus, DesiredFunction, Revision};

use super::load_counts::LoadCounts;

/// Time without calls after which a function is polled rarely. With a shorter one, a function
/// with a call every few seconds would stop and start the timer each time.
const QUIET_WINDOW: Duration = Duration::from_secs(10);

/// How often a function is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PollPace {
    /// Not at all: a request at the gateway is the next event.
    Parked,
    /// Rarely: it waits for its sleep, or for calls that pass no gateway.
    Idle,
    /// Once a second.
    Active,
}

/// Change of a function's replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplicaChange {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) reason: ScaleReason,
}

/// Autoscaler of one function.
#[derive(Debug)]
pub(super) struct FunctionScaler {
    settings: ScaleSettings,
    /// Revision and replicas of the controller's state.
    stored: (Revision, u32),
    autoscaler: Autoscaler,
    /// Rates of requests, and of calls past the gateway.
    rates: [CounterRate; 2],
    last_started: Option<u64>,
    last_connections: Option<u64>,
    quiet_since: Option<Instant>,
    has_unseen_calls: bool,
}

impl FunctionScaler {
    /// Begins with the replicas of the controller's state.
    pub(super) fn new(settings: ScaleSettings, function: &DesiredFunction, now: Instant) -> Self {
        Self {
            autoscaler: start_autoscaler(settings, now, function.replicas),
            settings,
            stored: (function.revision, function.replicas),
            rates: Default::default(),
            last_started: None,
            last_connections: None,
            quiet_since: None,
            has_unseen_calls: false,
        }
    }

    /// Takes over a change of the controller's state. Replicas that the user has set apply, and a
    /// deployment wakes the function, so that its author sees whether it starts.
    pub(super) fn update(
        &mut self,
        settings: ScaleSettings,
        function: &DesiredFunction,
        now: Instant,
    ) {
        let (revision, replicas) = self.stored;
        self.stored = (function.revision, function.replicas);
        self.settings = settings;
        let is_deployed = revision != function.revision && self.replicas(now) == 0;
        if replicas != function.replicas || is_deployed {
            self.continue_from(now, function.replicas);
        } else {
            self.autoscaler.update_settings(match self.replicas(now) {
                0 => with_zero(settings),
                _ => settings,
            });
        }
    }

    /// Goes on from a number of replicas, within the bounds; with 0 until the next call.
    pub(super) fn continue_from(&mut self, now: Instant, replicas: u32) {
        self.autoscaler = start_autoscaler(self.settings, now, replicas);
        self.quiet_since = None;
    }

    /// Wakes the function for a call, if it sleeps. All calls share the starts.
    pub(super) fn wake(&mut self, now: Instant) -> Option<ReplicaChange> {
        self.change_replicas(now, |scaler| {
            if scaler.replicas(now) > 0 {
                return;
            }
            let first_call = LoadSample {
                in_flight: Some(1),
                ..LoadSample::default()
            };
            scaler.autoscaler.observe(now, &first_call);
            scaler.autoscaler.update_settings(scaler.settings);
            scaler.quiet_since = None;
        })
    }

    /// Takes the counters of a poll.
    pub(super) fn observe(&mut self, now: Instant, counts: &LoadCounts) -> Option<ReplicaChange> {
        let before = self.last_connections.replace(counts.connections.started);
        let has_connections = counts.connections.open > 0
            || before.is_some_and(|before| before != counts.connections.started);
        self.note_quiet(now, counts, has_connections);
        self.has_unseen_calls = counts.has_unseen_calls;
        let sample = self.sample(now, counts, has_connections);
        self.change_replicas(now, |scaler| scaler.autoscaler.observe(now, &sample))
    }

    /// Returns how often to poll the function. `has_callers`: functions that run may call it
    /// past the gateway.
    pub(super) fn pace(&self, now: Instant, has_callers: bool) -> PollPace {
        let replicas = self.replicas(now);
        if replicas == 0 {
            return PollPace::Parked;
        }
        let is_quiet = self
            .quiet_since
            .is_some_and(|since| now.saturating_duration_since(since) >= QUIET_WINDOW);
        // With unseen calls, CPU time alone is known: neither other loads nor sleep depend on a poll.
        let is_load_known = !self.has_unseen_calls || self.settings.metric == ScaleMetric::Cpu;
        let may_shrink = replicas > self.settings.min_replicas && is_load_known;
        let may_sleep = self.settings.scale_to_zero && !self.has_unseen_calls;
        match is_quiet && !may_shrink {
            false => PollPace::Active,
            true if may_sleep || has_callers && is_load_known => PollPace::Idle,
            true => PollPace::Parked,
        }
    }

    /// Returns the replicas that it wants.
    pub(super) fn replicas(&self, now: Instant) -> u32 {
        self.autoscaler.decide(now).replicas
    }

    pub(super) fn settings(&self) -> &ScaleSettings {
        &self.settings
    }

    /// Returns its state for people.
    pub(super) fn status(&self, now: Instant) -> AutoscalingStatus {
        let decision = self.autoscaler.decide(now);
        AutoscalingStatus {
            replicas: decision.replicas,
            reason: decision.reason.to_string(),
            metric: self.settings.metric.to_string(),
            target: self.settings.target.get(),
            min: self.settings.min_replicas,
            max: self.settings.max_replicas,
        }
    }

    fn note_quiet(&mut self, now: Instant, counts: &LoadCounts, has_connections: bool) {
        let calls = counts.calls();
        let before = self.last_started.replace(calls.started);
        let is_quiet = calls.open == 0 && before == Some(calls.started) && !has_connections;
        self.quiet_since = is_quiet.then(|| self.quiet_since.unwrap_or(now));
    }

    fn sample(&mut self, now: Instant, counts: &LoadCounts, has_connections: bool) -> LoadSample {
        let started = [counts.requests.started, counts.direct_calls.started];
        // Both are read in any case: a rate needs the reading before it.
        let mut read = started.into_iter();
        let rates = self.rates.each_mut();
        let rates = rates.map(|rate| rate.read(now, read.next().unwrap_or_default()));
        let rate: Option<u64> = rates.into_iter().sum();
        // A connection says nothing about the load, so it counts as the smallest rate.
        let least = u64::from(has_connections);
        let rate = rate.map(|rate| rate.max(least));
        let is_seen = !counts.has_unseen_calls;
        LoadSample {
            arrival_rate_milli: rate.filter(|_| is_seen),
            in_flight: is_seen.then_some(counts.calls().open),
            cpu_milli: match self.settings.metric {
                ScaleMetric::Cpu => counts.cpu_milli,
                _ => None,
            },
            queued_messages: None,
            ready: counts.ready,
            starting: counts.starting,
        }
    }

    fn change_replicas(
        &mut self,
        now: Instant,
        change: impl FnOnce(&mut Self),
    ) -> Option<ReplicaChange> {
        let from = self.replicas(now);
        change(self);
        let decision = self.autoscaler.decide(now);
        (decision.replicas != from).then_some(ReplicaChange {
            from,
            to: decision.replicas,
            reason: decision.reason,
        })
    }
}

fn start_autoscaler(settings: ScaleSettings, now: Instant, replicas: u32) -> Autoscaler {
    match replicas {
        // Users may stop any function; the next call wakes it.
        0 => Autoscaler::new(with_zero(settings), now, 0),
        _ => Autoscaler::new(settings, now, replicas),
    }
}

fn with_zero(settings: ScaleSettings) -> ScaleSettings {
    ScaleSettings {
        scale_to_zero: true,
        ..settings
    }
}

#[cfg(test)]
mod tests;
