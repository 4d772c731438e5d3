//! Paths through time, and whatever connections show of them.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SEGMENT: u32 = 1_448;

/// What a connection shows that had `octets` under way at once, of twice as many.
fn flow(octets: u64) -> TcpFlowInfo {
    let round_trip = Duration::from_millis(2);
    let window = u32::try_from(octets.div_ceil(SEGMENT.into())).unwrap();
    TcpFlowInfo {
        mss_bytes: SEGMENT,
        cwnd_segments: window,
        min_rtt: Some(round_trip),
        delivery_rate: octets * 500,
        max_pacing_rate: u64::MAX,
        bytes_sent: 2 * octets,
        lost_segments: 0,
    }
}

fn fresh() -> TcpFlowInfo {
    TcpFlowInfo { cwnd_segments: INITIAL, bytes_sent: 0, delivery_rate: 0, ..flow(0) }
}

fn way(owner: &str, epoch: u64) -> Way {
    let key = Key { owner: owner.into(), to: "db:5432".into(), identity: String::new(), epoch };
    Way::new(&key, Ipv4Addr::LOCALHOST.into())
}

fn octets(one: &Use) -> u64 {
    one.window.map_or(0, |window| window.bytes)
}

/// After one connection that showed `bore`, alone.
fn learned(now: Instant, bore: u64) -> Windows {
    let mut windows = Windows::default();
    used(&mut windows, now, &flow(bore));
    windows
}

/// One connection that shows `flow`; what it began with.
fn used(windows: &mut Windows, now: Instant, flow: &TcpFlowInfo) -> u64 {
    let mut one = windows.begin(now, way("f", 1), &fresh());
    windows.learn(now, &mut one, flow);
    windows.end(&one);
    octets(&one)
}

fn next(windows: &mut Windows, now: Instant) -> u64 {
    used(windows, now, &fresh())
}

fn roughly(found: u64, expected: u64) {
    assert!(found <= expected && found + u64::from(SEGMENT) > expected, "{found} of {expected}");
}

#[test]
fn the_second_begins_with_what_the_first_had_under_way() {
    let now = Instant::now();
    let mut windows = learned(now, 100_000);
    let one = windows.begin(now, way("f", 1), &fresh());
    roughly(octets(&one), 100_000);
    let pace = u64::from(one.window.unwrap().pacing_rate);
    assert!((50_000_000..=62_500_000).contains(&pace), "{pace}: a quarter more than arrived");
}

/// A program writes all at once, hears that it came, and closes: what arrived last is an end alone, and slow.
#[test]
fn an_end_that_comes_alone_hides_nothing() {
    let now = Instant::now();
    let slow = TcpFlowInfo { delivery_rate: u64::from(SEGMENT) * 500, ..flow(100_000) };
    let mut windows = Windows::default();
    used(&mut windows, now, &slow);
    let one = windows.begin(now, way("f", 1), &fresh());
    roughly(octets(&one), u64::from(slow.cwnd_segments / 2 * SEGMENT));
    let pace = u64::from(one.window.unwrap().pacing_rate);
    assert!((25_000_000..=32_000_000).contains(&pace), "{pace}: a quarter more than arrived");
}

/// A window that is as it began shows nothing of what the path bears.
#[test]
fn a_window_that_has_not_grown_shows_nothing() {
    let now = Instant::now();
    let mut windows = learned(now, 100_000);
    let mut one = windows.begin(now, way("f", 1), &fresh());
    let began = one.window.unwrap().segments;
    let little = TcpFlowInfo { cwnd_segments: began, delivery_rate: 1_000, bytes_sent: 1_000_000, ..flow(100_000) };
    windows.learn(now + MINUTE, &mut one, &little);
    windows.end(&one);
    roughly(next(&mut windows, now + MINUTE), 50_000);
}

#[test]
fn other_owners_and_epochs_learn_for_themselves() {
    let now = Instant::now();
    let mut windows = learned(now, 100_000);
    for other in [way("g", 1), way("f", 2)] {
        assert_eq!(windows.begin(now, other, &fresh()).window, None);
    }
}

#[test]
fn every_minute_without_use_halves_it() {
    let now = Instant::now();
    for (minutes, left) in [(0, 800_000), (1, 400_000), (3, 100_000), (40, 0)] {
        let then = now + MINUTE * minutes + Duration::from_secs(5);
        roughly(next(&mut learned(now, 800_000), then), left);
    }
}

#[test]
fn use_keeps_it_and_little_use_does_not() {
    let now = Instant::now();
    let mut windows = learned(now, 800_000);
    used(&mut windows, now + MINUTE / 2, &flow(500_000));
    roughly(next(&mut windows, now + MINUTE), 800_000);
    used(&mut windows, now + MINUTE, &flow(100_000));
    roughly(next(&mut windows, now + MINUTE * 2), 400_000);
}

#[test]
fn a_loss_takes_it_and_is_remembered() {
    let now = Instant::now();
    let mut windows = learned(now, 400_000);
    used(&mut windows, now, &TcpFlowInfo { lost_segments: 1, ..flow(400_000) });
    assert_eq!(next(&mut windows, now), 0);
    used(&mut windows, now, &flow(400_000));
    roughly(next(&mut windows, now), 200_000);
    used(&mut windows, now + MINUTE, &flow(400_000));
    roughly(next(&mut windows, now + MINUTE), 400_000);
}

#[test]
fn a_loss_of_next_to_nothing_is_not_for_ever() {
    let now = Instant::now();
    let mut windows = Windows::default();
    used(&mut windows, now, &TcpFlowInfo { lost_segments: 1, ..flow(0) });
    used(&mut windows, now, &flow(400_000));
    roughly(next(&mut windows, now), 32 << 10);
    used(&mut windows, now + MINUTE, &flow(400_000));
    roughly(next(&mut windows, now + MINUTE), 64 << 10);
}

#[test]
fn a_loss_counts_once() {
    let now = Instant::now();
    let (mut windows, mut seen) = (learned(now, 400_000), flow(400_000));
    let mut one = windows.begin(now, way("f", 1), &fresh());
    seen.lost_segments = 3;
    windows.learn(now, &mut one, &seen);
    windows.learn(now, &mut one, &seen);
    windows.end(&one);
    roughly(next(&mut windows, now), 200_000);
}

#[test]
fn those_in_use_at_once_share_it() {
    let now = Instant::now();
    let mut windows = learned(now, 400_000);
    let first = windows.begin(now, way("f", 1), &fresh());
    let second = windows.begin(now, way("f", 1), &fresh());
    roughly(octets(&first), 400_000);
    assert_eq!(second.window, None, "the first fills the path");
    let third = windows.begin(now + Duration::from_secs(2), way("f", 1), &fresh());
    roughly(octets(&third), 400_000 / 3);
    [&first, &second, &third].iter().for_each(|one| windows.end(one));
    roughly(next(&mut windows, now), 400_000);
}

#[test]
fn what_is_remembered_is_bounded() {
    let (mut windows, now) = (Windows::default(), Instant::now());
    for epoch in 0..3_000 {
        let one = windows.begin(now, way("f", epoch), &fresh());
        windows.end(&one);
    }
    assert_eq!(windows.len(), 1_024);
}

const MINUTE: Duration = Duration::from_secs(60);

/// Begins one and shows something of one, at a time later than before.
#[derive(Debug, Clone)]
enum Event {
    Begin,
    Learn(usize, TcpFlowInfo),
    End(usize),
}

fn event() -> impl Strategy<Value = (u64, Event)> {
    let seen = (1..3_000_000u64, 0..4_000_000u64, 0..20_000u32, 1..200_000u64, 0..3u32);
    let seen = seen.prop_map(|(rate, sent, window, micros, lost)| TcpFlowInfo {
        mss_bytes: SEGMENT,
        cwnd_segments: window,
        min_rtt: Some(Duration::from_micros(micros)),
        delivery_rate: rate * 1_000,
        max_pacing_rate: u64::MAX,
        bytes_sent: sent,
        lost_segments: lost / 2,
    });
    let what = prop_oneof![
        Just(Event::Begin),
        (any::<usize>(), seen).prop_map(|(which, flow)| Event::Learn(which, flow)),
        any::<usize>().prop_map(Event::End),
    ];
    (prop_oneof![Just(0), 0..500u64, 0..200_000u64], what)
}

proptest! {
    /// No more than was seen to arrive since the last loss, all first flights of a second together, and never more than there may be.
    #[test]
    fn nobody_begins_with_more_than_was_borne(events in prop::collection::vec(event(), 1..200)) {
        let (mut windows, mut now, mut most) = (Windows::default(), Instant::now(), 0u64);
        let mut open: Vec<(Use, Instant)> = Vec::new();
        for (millis, event) in events {
            now += Duration::from_millis(millis);
            match event {
                Event::Begin => {
                    let one = windows.begin(now, way("f", 1), &fresh());
                    open.push((one, now));
                    let lately = open.iter().filter(|(_, at)| now - *at < Duration::from_secs(1));
                    let flying: u64 = lately.map(|(one, _)| octets(one)).sum();
                    let last = octets(&open.last().unwrap().0);
                    prop_assert!(last == 0 || flying <= most.min(MOST), "{flying} of {most}");
                    prop_assert!(last <= most.min(MOST) / open.len() as u64);
                }
                Event::Learn(which, flow) if !open.is_empty() => {
                    let which = which % open.len();
                    let one = &mut open[which].0;
                    most = if flow.lost_segments > one.lost { 0 } else { most.max(flow.bytes_sent.min(u64::from(flow.cwnd_segments) * u64::from(SEGMENT))) };
                    windows.learn(now, one, &flow);
                }
                Event::End(which) if !open.is_empty() => windows.end(&open.swap_remove(which % open.len()).0),
                _ => {}
            }
        }
    }
}
