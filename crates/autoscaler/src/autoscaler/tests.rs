//! Single decisions, without a simulation.

use super::*;

/// A function whose samples come once a second.
struct TestFunction {
    scaler: Autoscaler,
    now: Instant,
    ready: u32,
}

impl TestFunction {
    fn new(settings: ScaleSettings, replicas: u32) -> Self {
        let now = Instant::now();
        let scaler = Autoscaler::new(settings, now, replicas);
        Self {
            scaler,
            now,
            ready: replicas,
        }
    }

    /// Takes samples with these rates, in requests per second; replicas start at once.
    fn observe_rates(&mut self, rates: &[u64]) -> ScaleDecision {
        for rate in rates {
            self.observe(LoadSample {
                arrival_rate_milli: Some(rate * 1_000),
                in_flight: Some(0),
                ..LoadSample::default()
            });
        }
        self.scaler.decide(self.now)
    }

    fn observe(&mut self, sample: LoadSample) -> ScaleDecision {
        self.now += Duration::from_secs(1);
        let sample = LoadSample {
            ready: self.ready,
            ..sample
        };
        self.scaler.observe(self.now, &sample);
        let decision = self.scaler.decide(self.now);
        self.ready = decision.replicas;
        decision
    }
}

fn decision(replicas: u32, reason: ScaleReason) -> ScaleDecision {
    ScaleDecision { replicas, reason }
}

fn to_zero() -> ScaleSettings {
    ScaleSettings {
        scale_to_zero: true,
        ..ScaleSettings::default()
    }
}

#[test]
fn an_autoscaler_holds_less_than_a_kibibyte() {
    let bytes = size_of::<Autoscaler>();
    println!(
        "{bytes} bytes per function, and {} per counter",
        size_of::<CounterRate>()
    );
    assert!(bytes < 1_024, "{bytes}");
}

#[test]
fn replicas_carry_the_target_times_its_proportion() {
    let mut function = TestFunction::new(ScaleSettings::default(), 1);
    assert_eq!(
        function.observe_rates(&[45; 100]),
        decision(1, ScaleReason::StableLoad)
    );
    assert_eq!(
        function.observe_rates(&[46; 100]),
        decision(2, ScaleReason::StableLoad)
    );
}

#[test]
fn a_sudden_load_is_a_panic_and_no_replica_stops_in_it() {
    let mut function = TestFunction::new(ScaleSettings::default(), 1);
    function.observe_rates(&[10; 100]);
    assert_eq!(
        function.observe_rates(&[450; 6]),
        decision(10, ScaleReason::PanicLoad)
    );
    assert_eq!(
        function.observe_rates(&[10; 50]),
        decision(10, ScaleReason::PanicLoad)
    );
    let down_window = ScaleSettings::default().down_window.as_secs() as usize;
    function.observe_rates(&vec![10; down_window]);
    assert!(function.observe_rates(&[10; 60]).replicas <= 2);
}

#[test]
fn bounds_are_reasons() {
    let settings = ScaleSettings {
        min_replicas: 3,
        max_replicas: 5,
        ..ScaleSettings::default()
    };
    let mut function = TestFunction::new(settings, 1);
    assert_eq!(
        function.observe_rates(&[1]),
        decision(3, ScaleReason::MinReplicas)
    );
    assert_eq!(
        function.observe_rates(&[1_000; 10]),
        decision(5, ScaleReason::MaxReplicas)
    );
}

#[test]
fn one_step_has_a_limit() {
    let settings = ScaleSettings {
        max_replicas: 1_000,
        ..ScaleSettings::default()
    };
    let mut function = TestFunction::new(settings, 1);
    assert_eq!(
        function.observe_rates(&[1_000_000]),
        decision(MAX_SCALE_UP_FACTOR, ScaleReason::StepLimit)
    );
    assert_eq!(function.observe_rates(&[1_000_000]).replicas, 400);
}

#[test]
fn zero_needs_a_sample_of_all_traffic_for_the_whole_duration() {
    let mut function = TestFunction::new(to_zero(), 1);
    assert_eq!(function.observe_rates(&[0; 900]).replicas, 1);
    assert_eq!(
        function.observe_rates(&[0]),
        decision(0, ScaleReason::NoTraffic)
    );
    let mut function = TestFunction::new(to_zero(), 1);
    function.observe_rates(&[0; 899]);
    function.observe(LoadSample {
        arrival_rate_milli: Some(0),
        in_flight: None,
        ..LoadSample::default()
    });
    assert_eq!(
        function.observe_rates(&[0; 900]).replicas,
        1,
        "requests in flight were not known once"
    );
    assert_eq!(function.observe_rates(&[0]).replicas, 0);
}

#[test]
fn an_open_connection_keeps_a_replica() {
    let mut function = TestFunction::new(to_zero(), 1);
    for _ in 0..2_000 {
        let decided = function.observe(LoadSample {
            arrival_rate_milli: Some(0),
            in_flight: Some(1),
            ..LoadSample::default()
        });
        assert_eq!(decided.replicas, 1);
    }
}

#[test]
fn the_first_requests_share_one_start() {
    let settings = ScaleSettings {
        min_replicas: 2,
        ..to_zero()
    };
    let mut function = TestFunction::new(settings, 0);
    assert_eq!(
        function.scaler.decide(function.now),
        decision(0, ScaleReason::NoTraffic)
    );
    let start = function.now;
    for in_flight in 1..=700 {
        let sample = LoadSample {
            in_flight: Some(in_flight),
            starting: 2,
            ..LoadSample::default()
        };
        let now = start + Duration::from_micros(in_flight);
        function.scaler.observe(now, &sample);
        assert_eq!(
            function.scaler.decide(now),
            decision(2, ScaleReason::FirstTraffic)
        );
    }
}

#[test]
fn unknown_load_keeps_the_replicas() {
    let mut function = TestFunction::new(ScaleSettings::default(), 1);
    function.observe_rates(&[450; 200]);
    for _ in 0..600 {
        let decided = function.observe(LoadSample::default());
        assert_eq!(decided.replicas, 10);
    }
    assert_eq!(
        function.scaler.decide(function.now),
        decision(10, ScaleReason::MissingSamples)
    );
    assert_eq!(
        function.observe_rates(&[1; 60]),
        decision(10, ScaleReason::ShortHistory)
    );
    assert_eq!(function.observe_rates(&[1; 61]).replicas, 1);
}

#[test]
fn a_clock_that_steps_changes_nothing() {
    let mut function = TestFunction::new(ScaleSettings::default(), 1);
    function.observe_rates(&[450; 200]);
    let idle = LoadSample {
        arrival_rate_milli: Some(0),
        in_flight: Some(0),
        ready: 10,
        ..LoadSample::default()
    };
    let later = function.now + Duration::from_secs(86_400);
    function.scaler.observe(later, &idle);
    assert_eq!(function.scaler.decide(later).replicas, 10);
    function.scaler.observe(function.now, &idle);
    assert_eq!(function.scaler.decide(function.now).replicas, 10);
}

#[test]
fn new_settings_apply_their_bounds_at_once() {
    let mut function = TestFunction::new(ScaleSettings::default(), 1);
    function.observe_rates(&[450; 200]);
    function.scaler.update_settings(ScaleSettings {
        max_replicas: 4,
        ..ScaleSettings::default()
    });
    assert_eq!(function.scaler.decide(function.now).replicas, 4);
    function.scaler.update_settings(ScaleSettings {
        metric: ScaleMetric::Cpu,
        ..ScaleSettings::default()
    });
    assert_eq!(
        function.observe(LoadSample {
            cpu_milli: Some(10),
            ..LoadSample::default()
        }),
        decision(4, ScaleReason::ShortHistory)
    );
}

#[test]
fn an_earlier_time_counts_as_the_latest() {
    let mut function = TestFunction::new(to_zero(), 1);
    function.observe_rates(&[450; 20]);
    let mut other = function.scaler.clone();
    let sample = LoadSample {
        arrival_rate_milli: Some(0),
        in_flight: Some(0),
        ready: 10,
        ..LoadSample::default()
    };
    let earlier = function.now - Duration::from_secs(15);
    function.scaler.observe(earlier, &sample);
    other.observe(function.now, &sample);
    assert_eq!(function.scaler, other);
}

#[test]
fn a_short_zero_duration_waits_for_the_end_of_a_panic() {
    let settings = ScaleSettings {
        zero_duration: Duration::from_secs(5),
        ..to_zero()
    };
    let mut function = TestFunction::new(settings, 1);
    function.observe_rates(&[450; 3]);
    assert_eq!(
        function.observe_rates(&[0; 50]).reason,
        ScaleReason::PanicLoad
    );
    assert_eq!(
        function.observe_rates(&[0; 15]),
        decision(0, ScaleReason::NoTraffic)
    );
}

#[test]
fn the_idle_time_does_not_dilute_the_first_load() {
    let settings = ScaleSettings {
        zero_duration: Duration::from_secs(5),
        ..to_zero()
    };
    let mut function = TestFunction::new(settings, 1);
    assert_eq!(function.observe_rates(&[0; 6]).replicas, 0);
    assert_eq!(
        function.observe_rates(&[789]),
        decision(18, ScaleReason::PanicLoad)
    );
}

#[test]
fn at_the_maximum_there_is_no_panic() {
    let settings = ScaleSettings {
        max_replicas: 5,
        ..ScaleSettings::default()
    };
    let mut function = TestFunction::new(settings, 1);
    function.observe_rates(&[1_000; 100]);
    let after = function.observe_rates(&[1; 10]);
    assert_eq!(after, decision(5, ScaleReason::StableLoad));
}
