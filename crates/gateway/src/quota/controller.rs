//! CPU quota of the gateway, decided twice per period. Pure: counters in, a quota out; the time
//! is in the sample.
//!
//! The quota is linear in the request rate, as published for SPRIGHT (rate smoothed with weight
//! 0.8): `cost × rate`. The cost of a request is fitted at run time from CPU time and request
//! counts. CPU time used without requests (streams, WebSockets, handshakes) and [`HEADROOM`] are
//! added.
//!
//! The quota rises at once and falls late, to the maximum of the last second. A burst that uses
//! up the quota gets the ceiling at the next step. The kernel hands out a new quota when it is
//! set, so nothing waits for longer than a period. The kernel's count of throttling comes too
//! late for that: it grows when the threads resume. CPU time shows it earlier: a quota that is
//! used up within a period has taken at least half of it in one of the two steps.
use std::time::Duration;

/// Period of the kernel's bandwidth control, its default.
pub const BANDWIDTH_PERIOD: Duration = Duration::from_millis(100);
/// Time between decisions: half a period, see the module.
pub const DECISION_INTERVAL: Duration = Duration::from_millis(50);

/// Weight of the newest rate in the smoothed one, as in SPRIGHT.
const RATE_WEIGHT: f64 = 0.8;
/// Factor over the expected need, so that requests do not queue at the end of the quota.
const HEADROOM: f64 = 1.5;
/// Decay of the fit per step with requests; the fit follows a change within seconds.
const FIT_DECAY: f64 = 0.99;
/// Steps of lower need before the quota falls: one second.
const HOLD_STEPS: u32 = 20;
/// Share of a step's quota that counts as all of it: clocks and counters are not exact.
const EXHAUSTED_SHARE: f64 = 0.95;
/// Maximum ratio of new to old quota for a fall: smaller changes are not worth a write.
const MIN_FALL_SHARE: f64 = 0.9;

/// Bounds of the quota in thousandths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaBounds {
    /// Quota of an idle gateway.
    pub floor: u64,
    /// All CPU that there is.
    pub ceiling: u64,
}

/// Counters at one time. All only grow, except requests, which fall when a function is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuSample {
    /// Time since any fixed moment.
    pub at: Duration,
    /// Received requests.
    pub requests: u64,
    /// CPU time used.
    pub cpu: Duration,
    /// Time for which threads were throttled.
    pub throttled: Duration,
}

/// Controller of the CPU quota.
#[derive(Debug, Clone)]
pub struct QuotaController {
    bounds: QuotaBounds,
    last: Option<CpuSample>,
    millis: u64,
    /// Requests per second, smoothed.
    request_rate: f64,
    /// Cores in use, smoothed.
    cores_used: f64,
    /// Cores in use without requests, smoothed.
    idle_cores_used: f64,
    fit: CostFit,
    /// Steps until the quota may fall, and the maximum need since the last change.
    steps_to_hold: u32,
    peak_wanted: u64,
}

/// CPU seconds and requests with exponential decay.
#[derive(Debug, Clone, Copy, Default)]
struct CostFit {
    cpu: f64,
    requests: f64,
}

impl QuotaController {
    /// Starts at the ceiling, because nothing is known yet.
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

    /// Returns the last decision in thousandths of a core.
    pub fn quota_millis(&self) -> u64 {
        self.millis
    }

    /// Returns the fitted CPU seconds per request; 0 before the first request.
    pub fn cost_per_request(&self) -> f64 {
        if self.fit.requests > 0.0 {
            self.fit.cpu / self.fit.requests
        } else {
            0.0
        }
    }

    /// Decides the quota for the next step.
    pub fn decide_quota(&mut self, now: CpuSample) -> u64 {
        let Some(last) = self.last.replace(now) else {
            return self.millis;
        };
        let span = now.at.saturating_sub(last.at).as_secs_f64();
        // Two samples of one moment have no rate.
        if span <= 0.0 {
            return self.millis;
        }
        let requests = now.requests.saturating_sub(last.requests) as f64;
        let cpu = now.cpu.saturating_sub(last.cpu).as_secs_f64();
        self.update_fit(requests, cpu, span);
        let all = self.millis as f64 / 1_000.0 * span;
        // Either sign means that work was stopped, and the amount of waiting work is unknown.
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
        // A step without requests shows what the gateway uses by itself.
        if requests == 0.0 {
            self.idle_cores_used = smooth(self.idle_cores_used, cpu / span);
            return;
        }
        // The idle use can never exceed the whole, which corrects a value that is too high.
        self.idle_cores_used = self.idle_cores_used.min(cpu / span);
        self.fit.cpu = FIT_DECAY * self.fit.cpu + (cpu - self.idle_cores_used * span).max(0.0);
        self.fit.requests = FIT_DECAY * self.fit.requests + requests;
    }

    /// Returns the wanted quota, never less than the use: the linear model does not fit responses
    /// of very different sizes.
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
            // The floor is always reached in the end, however small the last step is.
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
