//! A gateway under the kernel's bandwidth control, a millisecond a step: requests come, cost CPU, and stop when the period's
//! quota is used up.

use std::time::Duration;

use proptest::prelude::*;

use super::state::{Bounds, PERIOD, Quota, STEP, Sample};

const PERIOD_MS: u64 = PERIOD.as_millis() as u64;
const STEP_MS: u64 = STEP.as_millis() as u64;
const BOUNDS: Bounds = Bounds { floor: 100, ceiling: 2_000 };

/// The kernel's part of it, and what waits. All CPU in microseconds.
struct Machine {
    quota: Quota,
    now: u64,
    /// Milliseconds after the start of half of the kernel's periods at which the quota is decided.
    phase: u64,
    left: u64,
    waiting: u64,
    sample: Sample,
    /// Milliseconds during which somebody waited for the next period.
    throttled: u64,
    longest: u64,
    run: u64,
}

impl Machine {
    fn new(phase: u64) -> Self {
        let quota = Quota::new(BOUNDS);
        let left = quota.millis() * PERIOD_MS;
        let sample = Sample::default();
        let (now, waiting, throttled, longest, run) = (0, 0, 0, 0, 0);
        Self { quota, now, phase, left, waiting, sample, throttled, longest, run }
    }

    /// One millisecond in which `requests` come that cost `cost` each.
    fn step(&mut self, requests: u64, cost: u64) {
        if self.now.is_multiple_of(PERIOD_MS) {
            self.sample.throttled = Duration::from_millis(self.throttled); // only now, as the kernel does
            self.left = self.quota.millis() * PERIOD_MS;
        }
        self.waiting += requests * cost;
        self.sample.requests += requests;
        let can = BOUNDS.ceiling; // µs of all cores in a millisecond
        let done = self.waiting.min(can).min(self.left);
        (self.waiting, self.left) = (self.waiting - done, self.left - done);
        self.sample.cpu += Duration::from_micros(done);
        let stopped = self.waiting > 0 && self.left == 0;
        self.throttled += u64::from(stopped);
        self.run = if stopped { self.run + 1 } else { 0 };
        self.longest = self.longest.max(self.run);
        self.now += 1;
        self.sample.at = Duration::from_millis(self.now);
        if self.now % STEP_MS == self.phase {
            self.decide();
        }
    }

    /// A quota that is set anew is given out at once.
    fn decide(&mut self) {
        let before = self.quota.millis();
        let after = self.quota.tick(self.sample);
        if after != before {
            self.left = after * PERIOD_MS;
        }
    }

    fn run(&mut self, ms: u64, per_second: u64, cost: u64) {
        for at in 0..ms {
            let due = |ms: u64| ms * per_second / 1_000;
            self.step(due(at + 1) - due(at), cost);
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
        let mut machine = Machine::new(phase);
        machine.run(2_000, rate / 10, cost);
        machine.run(silence, 0, cost);
        let before = machine.throttled;
        machine.run(burst, rate, cost);
        prop_assert!(machine.throttled - before <= PERIOD_MS, "{} ms", machine.throttled - before);
        prop_assert!(machine.longest <= PERIOD_MS);
    }

    #[test]
    fn a_steady_rate_is_never_throttled_and_not_given_more_than_twice_what_it_needs(
        phase in 0..STEP_MS,
        cost in 10u64..1_000,
        share in 0.1f64..0.6,
    ) {
        let rate = ((share * 2_000_000.0 / cost as f64) as u64).max(20);
        let mut machine = Machine::new(phase);
        machine.run(5_000, rate, cost);
        let (needs, has) = (rate * cost / 1_000, machine.quota.millis());
        prop_assert!(has >= needs, "{has} < {needs}");
        let most = (2 * needs).clamp(BOUNDS.floor, BOUNDS.ceiling) + cost; // one request more or less in a period
        prop_assert!(has <= most, "{has} > {most} for {needs}");
        let before = machine.throttled;
        machine.run(5_000, rate, cost);
        prop_assert_eq!(machine.throttled, before);
        let fitted = machine.quota.cost() * 1e6;
        prop_assert!((fitted / cost as f64 - 1.0).abs() < 0.05, "{fitted} µs for {cost}");
    }

    #[test]
    fn it_falls_to_the_floor_when_nothing_comes_and_stays_within_its_bounds(
        phase in 0..STEP_MS,
        loads in proptest::collection::vec((0u64..20_000, 1u64..3_000, 0u64..1_000), 0..8),
    ) {
        let mut machine = Machine::new(phase);
        for (rate, cost, ms) in loads {
            for at in 0..ms {
                machine.step(u64::from(at * rate / 1_000 != (at + 1) * rate / 1_000), cost);
                let millis = machine.quota.millis();
                prop_assert!((BOUNDS.floor..=BOUNDS.ceiling).contains(&millis), "{millis}");
            }
        }
        let mut calm = 0;
        while machine.waiting > 0 {
            machine.step(0, 0);
            calm += 1;
            prop_assert!(calm < 60_000, "it never catches up");
        }
        machine.run(4_000, 0, 0);
        prop_assert_eq!(machine.quota.millis(), BOUNDS.floor);
    }

    #[test]
    fn any_counters_are_answered(samples in proptest::collection::vec(any::<(u32, u64, u32, u64)>(), 0..20)) {
        let mut quota = Quota::new(BOUNDS);
        for (at, requests, cpu, throttled) in samples {
            let (at, cpu) = (Duration::from_millis(at.into()), Duration::from_millis(cpu.into()));
            let throttled = Duration::from_nanos(throttled);
            let millis = quota.tick(Sample { at, requests, cpu, throttled });
            prop_assert!((BOUNDS.floor..=BOUNDS.ceiling).contains(&millis));
        }
    }
}

#[test]
fn what_runs_without_requests_is_not_starved() {
    let mut machine = Machine::new(3);
    machine.run(1_000, 100, 100);
    for _ in 0..10_000 {
        machine.waiting += 500; // a stream that needs half a core, and no request comes
        machine.step(0, 0);
    }
    assert!(machine.throttled <= PERIOD_MS && machine.quota.millis() >= 500, "{}", machine.quota.millis());
}

/// The control: without the lift the same burst waits for many periods.
#[test]
fn the_simulation_can_throttle() {
    let mut machine = Machine::new(5);
    machine.run(5_000, 0, 0);
    assert_eq!(machine.quota.millis(), BOUNDS.floor);
    machine.phase = u64::MAX; // nobody decides any more
    machine.run(1_000, 1_000, 1_000);
    assert!(machine.throttled > 5 * PERIOD_MS, "{}", machine.throttled);
}
