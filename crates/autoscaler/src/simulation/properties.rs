//! Properties that hold for any load, any gap and any settings.

use std::time::{Duration, Instant};

use nearpath_types::policy::{ScaleMetric, ScaleSettings};
use proptest::prelude::*;

use crate::{Autoscaler, LoadSample, MAX_SAMPLE_INTERVAL, ScaleReason};

/// Some seconds with the same load.
#[derive(Debug, Clone)]
struct LoadSegment {
    seconds: u64,
    rate: u64,
    in_flight: u64,
    samples: SampleKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SampleKind {
    Complete,
    /// The load is not known.
    WithoutLoad,
    /// There is no sample at all.
    None,
}

fn any_metric() -> impl Strategy<Value = ScaleMetric> {
    prop_oneof![
        Just(ScaleMetric::Rps),
        Just(ScaleMetric::Capacity),
        Just(ScaleMetric::Cpu),
        Just(ScaleMetric::Queue)
    ]
}

fn any_settings() -> impl Strategy<Value = ScaleSettings> {
    (
        any_metric(),
        1u32..4,
        0u32..30,
        any::<bool>(),
        5u64..120,
        1u32..60,
        1u16..=1_000,
        0u64..120,
    )
        .prop_map(
            |(metric, min, more, scale_to_zero, zero, target, target_permille, down)| {
                ScaleSettings {
                    min_replicas: min,
                    max_replicas: min + more,
                    scale_to_zero,
                    zero_duration: Duration::from_secs(zero),
                    metric,
                    target: target.try_into().unwrap(),
                    target_permille,
                    down_window: Duration::from_secs(down),
                }
            },
        )
}

fn any_segments() -> impl Strategy<Value = Vec<LoadSegment>> {
    let kind = prop_oneof![6 => Just(SampleKind::Complete), 1 => Just(SampleKind::WithoutLoad), 1 => Just(SampleKind::None)];
    let rate = prop_oneof![2 => Just(0u64), 3 => 0u64..2_000];
    let segment =
        (1u64..150, rate, 0u64..200, kind).prop_map(|(seconds, rate, in_flight, samples)| {
            LoadSegment {
                seconds,
                rate,
                // Requests are open only while some arrive, so that there are times without traffic.
                in_flight: in_flight * u64::from(rate > 0),
                samples,
            }
        });
    prop::collection::vec(segment, 1..12)
}

fn sample(segment: &LoadSegment, ready: u32, starting: u32) -> Option<LoadSample> {
    let complete = LoadSample {
        arrival_rate_milli: Some(segment.rate * 1_000),
        in_flight: Some(segment.in_flight),
        cpu_milli: Some(segment.rate * 10),
        queued_messages: Some(segment.in_flight),
        ready,
        starting,
    };
    match segment.samples {
        SampleKind::Complete => Some(complete),
        SampleKind::WithoutLoad => Some(LoadSample {
            ready,
            starting,
            ..LoadSample::default()
        }),
        SampleKind::None => None,
    }
}

/// One second of a run.
#[derive(Debug, Clone, Copy)]
struct SecondOfRun {
    kind: SampleKind,
    has_traffic: bool,
    replicas: u32,
    reason: ScaleReason,
}

/// Runs the segments, with one sample and `decisions` decisions per second. Replicas that were
/// wanted ten seconds ago are ready.
fn run(
    settings: ScaleSettings,
    segments: &[LoadSegment],
    decisions: u32,
) -> (Autoscaler, Vec<SecondOfRun>) {
    let start = Instant::now();
    let mut scaler = Autoscaler::new(settings, start, 1);
    let mut course: Vec<SecondOfRun> = Vec::new();
    for segment in segments {
        for _ in 0..segment.seconds {
            let now = start + Duration::from_secs(course.len() as u64 + 1);
            let desired = scaler.decide(now).replicas;
            let ready = course
                .iter()
                .rev()
                .nth(10)
                .map_or(1, |second| second.replicas)
                .min(desired);
            if let Some(sample) = sample(segment, ready, desired - ready) {
                scaler.observe(now, &sample);
            }
            for step in 0..decisions {
                scaler.decide(now + Duration::from_millis(u64::from(step)));
            }
            let decision = scaler.decide(now);
            course.push(SecondOfRun {
                kind: segment.samples,
                has_traffic: segment.rate > 0 || segment.in_flight > 0,
                replicas: decision.replicas,
                reason: decision.reason,
            });
        }
    }
    (scaler, course)
}

/// Returns the seconds at the end that samples show to be without traffic. A pause between samples
/// is fine up to [`MAX_SAMPLE_INTERVAL`], because a counter would show its requests afterwards.
fn quiet_seconds(course: &[SecondOfRun]) -> u64 {
    let (mut quiet, mut pause) = (0, 0);
    for second in course.iter().rev() {
        match second.kind {
            SampleKind::None => pause += 1,
            SampleKind::Complete
                if !second.has_traffic && pause < MAX_SAMPLE_INTERVAL.as_secs() =>
            {
                (quiet, pause) = (quiet + pause + 1, 0);
            }
            _ => break,
        }
    }
    quiet
}

proptest! {
    #[test]
    fn replicas_stay_between_their_bounds(settings in any_settings(), segments in any_segments()) {
        for second in run(settings, &segments, 1).1 {
            let is_within = (settings.min_replicas..=settings.max_replicas).contains(&second.replicas);
            prop_assert!(is_within || (second.replicas == 0 && settings.scale_to_zero), "{second:?}");
        }
    }

    #[test]
    fn a_function_sleeps_only_after_its_zero_duration(settings in any_settings(), segments in any_segments()) {
        let course = run(settings, &segments, 1).1;
        for (second, pair) in course.windows(2).enumerate() {
            if pair[0].replicas > 0 && pair[1].replicas == 0 {
                let quiet = quiet_seconds(&course[..=second + 1]);
                prop_assert!(quiet > settings.zero_duration.as_secs(), "{quiet} s without traffic");
            }
        }
    }

    #[test]
    fn traffic_wakes_a_function_at_once(settings in any_settings(), segments in any_segments()) {
        for second in run(settings, &segments, 1).1 {
            prop_assert!(second.replicas > 0 || second.kind != SampleKind::Complete || !second.has_traffic);
        }
    }

    #[test]
    fn missing_samples_and_panic_lower_nothing(settings in any_settings(), segments in any_segments()) {
        for pair in run(settings, &segments, 1).1.windows(2) {
            let is_held = pair[1].kind != SampleKind::Complete || pair[1].reason == ScaleReason::PanicLoad;
            prop_assert!(!is_held || pair[1].replicas >= pair[0].replicas, "{pair:?}");
        }
    }

    /// Where every stable window has a gap, nothing is certain enough to stop a replica.
    #[test]
    fn regular_gaps_lower_nothing(settings in any_settings(), rates in prop::collection::vec(1u64..2_000, 1..12), gap in 7u64..20) {
        let segments: Vec<LoadSegment> = rates.iter().flat_map(|&rate| {
            let complete = LoadSegment { seconds: 50, rate, in_flight: rate / 10, samples: SampleKind::Complete };
            [complete.clone(), LoadSegment { seconds: gap, samples: SampleKind::None, ..complete }]
        }).collect();
        let course = run(settings, &segments, 1).1;
        prop_assert!(course.windows(2).all(|pair| pair[1].replicas >= pair[0].replicas), "{course:?}");
    }

    #[test]
    fn decisions_do_not_depend_on_how_often_they_are_asked_for(
        settings in any_settings(), segments in any_segments(), decisions in 2u32..20,
    ) {
        let (once, course) = run(settings, &segments, 1);
        let (often, other_course) = run(settings, &segments, decisions);
        let replicas = |course: &[SecondOfRun]| course.iter().map(|second| (second.replicas, second.reason)).collect::<Vec<_>>();
        prop_assert_eq!(replicas(&course), replicas(&other_course));
        let now = Instant::now() + Duration::from_secs(10_000);
        prop_assert_eq!(once.decide(now), often.decide(now));
    }

    /// No value and no order of times overflows, contradicting settings included.
    #[test]
    fn any_sample_is_answered(
        bounds in (any::<u32>(), any::<u32>()),
        target in (1u32.., any::<u16>(), any_metric()),
        samples in prop::collection::vec((any::<u32>(), prop::array::uniform4(prop::option::of(any::<u64>())), any::<[u32; 2]>()), 1..60),
    ) {
        let settings = ScaleSettings {
            min_replicas: bounds.0,
            max_replicas: bounds.1,
            scale_to_zero: true,
            target: target.0.try_into().unwrap(),
            target_permille: target.1,
            metric: target.2,
            ..ScaleSettings::default()
        };
        let start = Instant::now();
        let mut scaler = Autoscaler::new(settings, start, 0);
        for (millis, [arrival_rate_milli, in_flight, cpu_milli, queued_messages], [ready, starting]) in samples {
            let now = start + Duration::from_millis(millis.into());
            scaler.observe(now, &LoadSample { arrival_rate_milli, in_flight, cpu_milli, queued_messages, ready, starting });
            prop_assert!(scaler.decide(now).replicas <= bounds.1.max(1));
        }
    }
}
