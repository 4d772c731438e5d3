//! How much CPU the gateway may use, decided twice a period. Pure: counters in, a quota out; time is in the sample.
//!
//! The quota is linear in the rate of requests, as published for SPRIGHT (rate smoothed with weight 0.8): `cost × rate`. The
//! cost of a request is not copied from anywhere but fitted while it runs, from CPU time and requests counted. To that comes
//! what is used without requests (streams, WebSockets, handshakes) and [`HEADROOM`].
//!
//! It rises at once and falls late, to the most that was needed in the last second. A burst that uses its quota up gets
//! everything at the next step: the kernel gives a new quota out when it is set, so that nobody waits for longer than a period.
//! The kernel's own count of throttling comes too late for that, it grows when the threads go on; so it is the CPU time that
//! tells: a period's quota used up has, in one of two steps, taken at least half.

use std::time::Duration;

/// The period of the kernel's bandwidth control, its default.
pub const BANDWIDTH_PERIOD: Duration = Duration::from_millis(100);
/// From one decision to the next: half a period, see the module.
pub const DECISION_INTERVAL: Duration = Duration::from_millis(50);

/// Weight of the newest rate.
const RATE_WEIGHT: f64 = 0.8;
/// What is given over what is expected, so that requests do not queue for the quota's end.
const HEADROOM: f64 = 1.5;
/// What stays of the fit's past with each step that had requests: it follows within some seconds.
const FIT_DECAY: f64 = 0.99;
/// Steps in which less has to be enough before the quota falls: a second.
const HOLD_STEPS: u32 = 20;
/// So much of what could be used in a step is all of it: clocks and counters are not exact.
const EXHAUSTED_SHARE: f64 = 0.95;
/// A fall by less is not worth a change.
const MIN_FALL_SHARE: f64 = 0.9;

/// What the quota stays within, in thousandths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaBounds {
    /// While nothing happens.
    pub floor: u64,
    /// All that there is.
    pub ceiling: u64,
}

/// Counters at one moment; all only grow, but for requests, which fall when a function is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuSample {
    /// Since any fixed moment.
    pub at: Duration,
    /// Requests that came.
    pub requests: u64,
    /// CPU time used.
    pub cpu: Duration,
    /// How long threads were throttled.
    pub throttled: Duration,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct QuotaController {
    bounds: QuotaBounds,
    last: Option<CpuSample>,
    millis: u64,
    /// Requests a second, smoothed.
    request_rate: f64,
    /// Cores in use, smoothed.
    cores_used: f64,
    /// Cores in use while no request came.
    idle_cores_used: f64,
    fit: CostFit,
    /// Steps until it may fall, and the most that was wanted in those that have passed.
    steps_to_hold: u32,
    peak_wanted: u64,
}

/// CPU seconds and requests, with the past fading.
#[derive(Debug, Clone, Copy, Default)]
struct CostFit {
    cpu: f64,
    requests: f64,
}

impl QuotaController {
    /// Begins with all that there is: nothing is known yet.
    pub fn new(bounds: QuotaBounds) -> Self {
        let (request_rate, cores_used, idle_cores_used) = (0.0, 0.0, 0.0);
        let millis = bounds.ceiling;
        Self {
            bounds,
            last: None,
            millis,
            request_rate,
            cores_used,
            idle_cores_used,
            fit: CostFit::default(),
            steps_to_hold: HOLD_STEPS,
            peak_wanted: 0,
        }
    }

    /// Thousandths of a core, as decided last.
    pub fn quota_millis(&self) -> u64 {
        self.millis
    }

    /// CPU seconds that a request costs, as fitted; 0 before the first one.
    pub fn cost_per_request(&self) -> f64 {
        if self.fit.requests > 0.0 {
            self.fit.cpu / self.fit.requests
        } else {
            0.0
        }
    }

    /// A step has passed: the quota for the next one.
    pub fn decide_quota(&mut self, now: CpuSample) -> u64 {
        let Some(last) = self.last.replace(now) else {
            return self.millis;
        };
        let span = now.at.saturating_sub(last.at).as_secs_f64();
        if span <= 0.0 {
            return self.millis;
        }
        let requests = now.requests.saturating_sub(last.requests) as f64;
        let cpu = now.cpu.saturating_sub(last.cpu).as_secs_f64();
        self.update_fit(requests, cpu, span);
        let all = self.millis as f64 / 1_000.0 * span;
        if now.throttled > last.throttled || cpu >= EXHAUSTED_SHARE * all {
            self.raise_to_ceiling();
        } else {
            self.approach_wanted(self.wanted_millis());
        }
        self.millis
    }

    fn update_fit(&mut self, requests: f64, cpu: f64, span: f64) {
        let smooth = |old: f64, new: f64| RATE_WEIGHT * new + (1.0 - RATE_WEIGHT) * old;
        self.request_rate = smooth(self.request_rate, requests / span);
        self.cores_used = smooth(self.cores_used, cpu / span);
        if requests == 0.0 {
            self.idle_cores_used = smooth(self.idle_cores_used, cpu / span);
            return;
        }
        self.idle_cores_used = self.idle_cores_used.min(cpu / span);
        self.fit.cpu = FIT_DECAY * self.fit.cpu + (cpu - self.idle_cores_used * span).max(0.0);
        self.fit.requests = FIT_DECAY * self.fit.requests + requests;
    }

    /// Never less than what is used: where the line does not fit (answers of very different sizes), that does.
    fn wanted_millis(&self) -> u64 {
        let cores = (self.cost_per_request() * self.request_rate + self.idle_cores_used)
            .max(self.cores_used);
        let millis = (cores * HEADROOM * 1_000.0).ceil();
        (millis as u64).clamp(
            self.bounds.floor.min(self.bounds.ceiling),
            self.bounds.ceiling,
        )
    }

    fn raise_to_ceiling(&mut self) {
        self.millis = self.bounds.ceiling;
        (self.steps_to_hold, self.peak_wanted) = (HOLD_STEPS, 0);
    }

    fn approach_wanted(&mut self, wanted: u64) {
        self.peak_wanted = self.peak_wanted.max(wanted);
        if wanted >= self.millis {
            self.millis = wanted;
            (self.steps_to_hold, self.peak_wanted) = (HOLD_STEPS, 0);
            return;
        }
        self.steps_to_hold = self.steps_to_hold.saturating_sub(1);
        if self.steps_to_hold == 0 {
            let is_worth_it = self.peak_wanted == self.bounds.floor
                || (self.peak_wanted as f64) < MIN_FALL_SHARE * self.millis as f64;
            self.millis = if is_worth_it {
                self.peak_wanted
            } else {
                self.millis
            };
            (self.steps_to_hold, self.peak_wanted) = (HOLD_STEPS, 0);
        }
    }
}
