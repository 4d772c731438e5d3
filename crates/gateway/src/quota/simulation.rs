//! Simulation of a gateway under the kernel's bandwidth control in steps of 1 ms. Requests cost
//! CPU and stop when the period's quota is used up.

use std::time::Duration;

use proptest::prelude::*;

use super::controller::{
    BANDWIDTH_PERIOD, CpuSample, DECISION_INTERVAL, QuotaBounds, QuotaController,
};

const PERIOD_MS: u64 = BANDWIDTH_PERIOD.as_millis() as u64;
const STEP_MS: u64 = DECISION_INTERVAL.as_millis() as u64;
const BOUNDS: QuotaBounds = QuotaBounds {
    floor: 100,
    ceiling: 2_000,
};

/// Simulated kernel and gateway with waiting work. All CPU in microseconds.
struct SimulatedGateway {
    quota: QuotaController,
    now: u64,
    /// Offset of the decisions from the start of each half period, in milliseconds.
    phase: u64,
    quota_left: u64,
    cpu_waiting: u64,
    sample: CpuSample,
    /// Milliseconds during which work waited for the next period.
    throttled: u64,
    longest_stop: u64,
    current_stop: u64,
}

impl SimulatedGateway {
    fn new(phase: u64) -> Self {
        let quota = QuotaController::new(BOUNDS);
        let quota_left = quota.quota_millis() * PERIOD_MS;
        let sample = CpuSample::default();
        let (now, cpu_waiting, throttled, longest_stop, current_stop) = (0, 0, 0, 0, 0);
        Self {
            quota,
            now,
            phase,
            quota_left,
            cpu_waiting,
            sample,
            throttled,
            longest_stop,
            current_stop,
        }
    }

    /// Simulates a millisecond in which `requests` arrive that cost `cost` each.
    fn run_millisecond(&mut self, requests: u64, cost: u64) {
        if self.now.is_multiple_of(PERIOD_MS) {
            // Only now, as the kernel does.
            self.sample.throttled = Duration::from_millis(self.throttled);
            self.quota_left = self.quota.quota_millis() * PERIOD_MS;
        }
        self.cpu_waiting += requests * cost;
        self.sample.requests += requests;
        let max_cpu = BOUNDS.ceiling; // µs of all cores in a millisecond
        let done = self.cpu_waiting.min(max_cpu).min(self.quota_left);
        (self.cpu_waiting, self.quota_left) = (self.cpu_waiting - done, self.quota_left - done);
        self.sample.cpu += Duration::from_micros(done);
        let is_stopped = self.cpu_waiting > 0 && self.quota_left == 0;
        self.throttled += u64::from(is_stopped);
        self.current_stop = if is_stopped { self.current_stop + 1 } else { 0 };
        self.longest_stop = self.longest_stop.max(self.current_stop);
        self.now += 1;
        self.sample.at = Duration::from_millis(self.now);
        if self.now % STEP_MS == self.phase {
            self.apply_decision();
        }
    }

    /// Applies a decision. The kernel hands out a new quota at once.
    fn apply_decision(&mut self) {
        let before = self.quota.quota_millis();
        let after = self.quota.decide_quota(self.sample);
        if after != before {
            self.quota_left = after * PERIOD_MS;
        }
    }

    fn run_load(&mut self, ms: u64, per_second: u64, cost: u64) {
        for at in 0..ms {
            let due = |ms: u64| ms * per_second / 1_000;
            self.run_millisecond(due(at + 1) - due(at), cost);
        }
    }
}

proptest! {
    #[test]
    fn a_burst_after_any_silence_waits_for_one_period_at_most(
        phase in 0..STEP_MS,
        cost in 10u64..2_000,
        share in 0.05f64..0.9,
        silence in 0u64..5_000,
        burst in 300u64..3_000,
    ) {
        let rate = (share * 2_000_000.0 / cost as f64) as u64; // what the cores can do
        let mut gateway = SimulatedGateway::new(phase);
        gateway.run_load(2_000, rate / 10, cost);
        gateway.run_load(silence, 0, cost);
        let before = gateway.throttled;
        gateway.run_load(burst, rate, cost);
        prop_assert!(gateway.throttled - before <= PERIOD_MS, "{} ms", gateway.throttled - before);
        prop_assert!(gateway.longest_stop <= PERIOD_MS);
    }

    #[test]
    fn a_steady_rate_is_never_throttled_and_not_given_more_than_twice_what_it_needs(
        phase in 0..STEP_MS,
        cost in 10u64..1_000,
        share in 0.1f64..0.6,
    ) {
        let rate = ((share * 2_000_000.0 / cost as f64) as u64).max(20);
        let mut gateway = SimulatedGateway::new(phase);
        gateway.run_load(5_000, rate, cost);
        let (needs, quota) = (rate * cost / 1_000, gateway.quota.quota_millis());
        prop_assert!(quota >= needs, "{quota} < {needs}");
        // One request more or less in a period.
        let max_quota = (2 * needs).clamp(BOUNDS.floor, BOUNDS.ceiling) + cost;
        prop_assert!(quota <= max_quota, "{quota} > {max_quota} for {needs}");
        let before = gateway.throttled;
        gateway.run_load(5_000, rate, cost);
        prop_assert_eq!(gateway.throttled, before);
        let fitted = gateway.quota.cost_per_request() * 1e6;
        prop_assert!((fitted / cost as f64 - 1.0).abs() < 0.05, "{fitted} µs for {cost}");
    }

    #[test]
    fn the_quota_falls_to_the_floor_without_load_and_stays_within_its_bounds(
        phase in 0..STEP_MS,
        loads in proptest::collection::vec((0u64..20_000, 1u64..3_000, 0u64..1_000), 0..8),
    ) {
        let mut gateway = SimulatedGateway::new(phase);
        for (rate, cost, ms) in loads {
            for at in 0..ms {
                gateway.run_millisecond(u64::from(at * rate / 1_000 != (at + 1) * rate / 1_000), cost);
                let millis = gateway.quota.quota_millis();
                prop_assert!((BOUNDS.floor..=BOUNDS.ceiling).contains(&millis), "{millis}");
            }
        }
        let mut calm = 0;
        while gateway.cpu_waiting > 0 {
            gateway.run_millisecond(0, 0);
            calm += 1;
            prop_assert!(calm < 60_000, "it never catches up");
        }
        gateway.run_load(4_000, 0, 0);
        prop_assert_eq!(gateway.quota.quota_millis(), BOUNDS.floor);
    }

    #[test]
    fn any_counters_give_a_quota_within_bounds(samples in proptest::collection::vec(any::<(u32, u64, u32, u64)>(), 0..20)) {
        let mut quota = QuotaController::new(BOUNDS);
        for (at, requests, cpu, throttled) in samples {
            let (at, cpu) = (Duration::from_millis(at.into()), Duration::from_millis(cpu.into()));
            let throttled = Duration::from_nanos(throttled);
            let millis = quota.decide_quota(CpuSample { at, requests, cpu, throttled });
            prop_assert!((BOUNDS.floor..=BOUNDS.ceiling).contains(&millis));
        }
    }
}

#[test]
fn load_without_requests_is_not_throttled() {
    let mut gateway = SimulatedGateway::new(3);
    gateway.run_load(1_000, 100, 100);
    for _ in 0..10_000 {
        gateway.cpu_waiting += 500; // a stream that needs half a core, and no request comes
        gateway.run_millisecond(0, 0);
    }
    assert!(
        gateway.throttled <= PERIOD_MS && gateway.quota.quota_millis() >= 500,
        "{}",
        gateway.quota.quota_millis()
    );
}

/// Control: without the raise to the ceiling, the same burst waits for many periods.
#[test]
fn without_decisions_a_burst_is_throttled() {
    let mut gateway = SimulatedGateway::new(5);
    gateway.run_load(5_000, 0, 0);
    assert_eq!(gateway.quota.quota_millis(), BOUNDS.floor);
    gateway.phase = u64::MAX; // no more decisions
    gateway.run_load(1_000, 1_000, 1_000);
    assert!(gateway.throttled > 5 * PERIOD_MS, "{}", gateway.throttled);
}
