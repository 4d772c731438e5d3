//! Paths through time, and whatever connections show of them.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SEGMENT_BYTES: u32 = 1_448;

/// What a connection shows that had `octets` under way at once, of twice as many.
fn flow_with(octets: u64) -> TcpFlowInfo {
    let round_trip = Duration::from_millis(2);
    let window = u32::try_from(octets.div_ceil(SEGMENT_BYTES.into())).unwrap();
    TcpFlowInfo {
        mss_bytes: SEGMENT_BYTES,
        cwnd_segments: window,
        min_rtt: Some(round_trip),
        delivery_rate: octets * 500,
        max_pacing_rate: u64::MAX,
        bytes_sent: 2 * octets,
        lost_segments: 0,
    }
}

fn fresh_flow() -> TcpFlowInfo {
    TcpFlowInfo {
        cwnd_segments: DEFAULT_INITIAL_SEGMENTS,
        bytes_sent: 0,
        delivery_rate: 0,
        ..flow_with(0)
    }
}

fn path_key(owner: &str, epoch: u64) -> PathKey {
    let key = PoolKey {
        owner: owner.into(),
        host_port: "db:5432".into(),
        identity: String::new(),
        epoch,
    };
    PathKey::new(&key, Ipv4Addr::LOCALHOST.into())
}

fn window_bytes(one: &PathUse) -> u64 {
    one.initial_window.map_or(0, |window| window.bytes)
}

/// After one connection that showed `bore`, alone.
fn cache_with(now: Instant, bore: u64) -> CwndCache {
    let mut windows = CwndCache::default();
    use_once(&mut windows, now, &flow_with(bore));
    windows
}

/// One connection that shows `flow`; what it began with.
fn use_once(windows: &mut CwndCache, now: Instant, flow: &TcpFlowInfo) -> u64 {
    let mut one = windows.begin_use(now, path_key("f", 1), &fresh_flow());
    windows.record_flow(now, &mut one, flow);
    windows.end_use(&one);
    window_bytes(&one)
}

fn next_window(windows: &mut CwndCache, now: Instant) -> u64 {
    use_once(windows, now, &fresh_flow())
}

fn assert_roughly(found: u64, expected: u64) {
    assert!(
        found <= expected && found + u64::from(SEGMENT_BYTES) > expected,
        "{found} of {expected}"
    );
}

#[test]
fn the_second_connection_begins_with_what_the_first_had_in_flight() {
    let now = Instant::now();
    let mut windows = cache_with(now, 100_000);
    let one = windows.begin_use(now, path_key("f", 1), &fresh_flow());
    assert_roughly(window_bytes(&one), 100_000);
    let pace = u64::from(one.initial_window.unwrap().pacing_rate);
    assert!(
        (50_000_000..=62_500_000).contains(&pace),
        "{pace}: a quarter more than arrived"
    );
}

/// A program writes all at once, hears that it came, and closes: what arrived last is an end alone, and slow.
#[test]
fn a_slow_last_segment_does_not_hide_the_window() {
    let now = Instant::now();
    let slow = TcpFlowInfo {
        delivery_rate: u64::from(SEGMENT_BYTES) * 500,
        ..flow_with(100_000)
    };
    let mut windows = CwndCache::default();
    use_once(&mut windows, now, &slow);
    let one = windows.begin_use(now, path_key("f", 1), &fresh_flow());
    assert_roughly(
        window_bytes(&one),
        u64::from(slow.cwnd_segments / 2 * SEGMENT_BYTES),
    );
    let pace = u64::from(one.initial_window.unwrap().pacing_rate);
    assert!(
        (25_000_000..=32_000_000).contains(&pace),
        "{pace}: a quarter more than arrived"
    );
}

/// A window that is as it began shows nothing of what the path bears.
#[test]
fn a_window_that_has_not_grown_shows_nothing() {
    let now = Instant::now();
    let mut windows = cache_with(now, 100_000);
    let mut one = windows.begin_use(now, path_key("f", 1), &fresh_flow());
    let began = one.initial_window.unwrap().segments;
    let little = TcpFlowInfo {
        cwnd_segments: began,
        delivery_rate: 1_000,
        bytes_sent: 1_000_000,
        ..flow_with(100_000)
    };
    windows.record_flow(now + MINUTE, &mut one, &little);
    windows.end_use(&one);
    assert_roughly(next_window(&mut windows, now + MINUTE), 50_000);
}

#[test]
fn owners_and_epochs_do_not_share_a_history() {
    let now = Instant::now();
    let mut windows = cache_with(now, 100_000);
    for other in [path_key("g", 1), path_key("f", 2)] {
        assert_eq!(
            windows.begin_use(now, other, &fresh_flow()).initial_window,
            None
        );
    }
}

#[test]
fn every_minute_without_use_halves_the_window() {
    let now = Instant::now();
    for (minutes, left) in [(0, 800_000), (1, 400_000), (3, 100_000), (40, 0)] {
        let then = now + MINUTE * minutes + Duration::from_secs(5);
        assert_roughly(next_window(&mut cache_with(now, 800_000), then), left);
    }
}

#[test]
fn full_use_keeps_the_window_and_light_use_does_not() {
    let now = Instant::now();
    let mut windows = cache_with(now, 800_000);
    use_once(&mut windows, now + MINUTE / 2, &flow_with(500_000));
    assert_roughly(next_window(&mut windows, now + MINUTE), 800_000);
    use_once(&mut windows, now + MINUTE, &flow_with(100_000));
    assert_roughly(next_window(&mut windows, now + MINUTE * 2), 400_000);
}

#[test]
fn a_loss_resets_the_window_and_is_remembered() {
    let now = Instant::now();
    let mut windows = cache_with(now, 400_000);
    use_once(
        &mut windows,
        now,
        &TcpFlowInfo {
            lost_segments: 1,
            ..flow_with(400_000)
        },
    );
    assert_eq!(next_window(&mut windows, now), 0);
    use_once(&mut windows, now, &flow_with(400_000));
    assert_roughly(next_window(&mut windows, now), 200_000);
    use_once(&mut windows, now + MINUTE, &flow_with(400_000));
    assert_roughly(next_window(&mut windows, now + MINUTE), 400_000);
}

#[test]
fn a_loss_on_a_small_window_does_not_last() {
    let now = Instant::now();
    let mut windows = CwndCache::default();
    use_once(
        &mut windows,
        now,
        &TcpFlowInfo {
            lost_segments: 1,
            ..flow_with(0)
        },
    );
    use_once(&mut windows, now, &flow_with(400_000));
    assert_roughly(next_window(&mut windows, now), 32 << 10);
    use_once(&mut windows, now + MINUTE, &flow_with(400_000));
    assert_roughly(next_window(&mut windows, now + MINUTE), 64 << 10);
}

#[test]
fn a_loss_counts_once() {
    let now = Instant::now();
    let (mut windows, mut seen) = (cache_with(now, 400_000), flow_with(400_000));
    let mut one = windows.begin_use(now, path_key("f", 1), &fresh_flow());
    seen.lost_segments = 3;
    windows.record_flow(now, &mut one, &seen);
    windows.record_flow(now, &mut one, &seen);
    windows.end_use(&one);
    assert_roughly(next_window(&mut windows, now), 200_000);
}

#[test]
fn concurrent_connections_share_the_window() {
    let now = Instant::now();
    let mut windows = cache_with(now, 400_000);
    let first = windows.begin_use(now, path_key("f", 1), &fresh_flow());
    let second = windows.begin_use(now, path_key("f", 1), &fresh_flow());
    assert_roughly(window_bytes(&first), 400_000);
    assert_eq!(second.initial_window, None, "the first fills the path");
    let third = windows.begin_use(
        now + Duration::from_secs(2),
        path_key("f", 1),
        &fresh_flow(),
    );
    assert_roughly(window_bytes(&third), 400_000 / 3);
    [&first, &second, &third]
        .iter()
        .for_each(|one| windows.end_use(one));
    assert_roughly(next_window(&mut windows, now), 400_000);
}

#[test]
fn the_number_of_remembered_paths_is_bounded() {
    let (mut windows, now) = (CwndCache::default(), Instant::now());
    for epoch in 0..3_000 {
        let one = windows.begin_use(now, path_key("f", epoch), &fresh_flow());
        windows.end_use(&one);
    }
    assert_eq!(windows.len(), 1_024);
}

const MINUTE: Duration = Duration::from_secs(60);

/// Begins one and shows something of one, at a time later than before.
#[derive(Debug, Clone)]
enum CwndEvent {
    Begin,
    Record(usize, TcpFlowInfo),
    End(usize),
}

fn cwnd_event() -> impl Strategy<Value = (u64, CwndEvent)> {
    let seen = (
        1..3_000_000u64,
        0..4_000_000u64,
        0..20_000u32,
        1..200_000u64,
        0..3u32,
    );
    let seen = seen.prop_map(|(rate, sent, window, micros, lost)| TcpFlowInfo {
        mss_bytes: SEGMENT_BYTES,
        cwnd_segments: window,
        min_rtt: Some(Duration::from_micros(micros)),
        delivery_rate: rate * 1_000,
        max_pacing_rate: u64::MAX,
        bytes_sent: sent,
        lost_segments: lost / 2,
    });
    let what = prop_oneof![
        Just(CwndEvent::Begin),
        (any::<usize>(), seen).prop_map(|(which, flow)| CwndEvent::Record(which, flow)),
        any::<usize>().prop_map(CwndEvent::End),
    ];
    (prop_oneof![Just(0), 0..500u64, 0..200_000u64], what)
}

proptest! {
    /// No more than was seen to arrive since the last loss, all first flights of a second together, and never more than there may be.
    #[test]
    fn nobody_begins_with_more_than_was_borne(events in prop::collection::vec(cwnd_event(), 1..200)) {
        let (mut windows, mut now, mut most) = (CwndCache::default(), Instant::now(), 0u64);
        let mut open: Vec<(PathUse, Instant)> = Vec::new();
        for (millis, event) in events {
            now += Duration::from_millis(millis);
            match event {
                CwndEvent::Begin => {
                    let one = windows.begin_use(now, path_key("f", 1), &fresh_flow());
                    open.push((one, now));
                    let lately = open.iter().filter(|(_, at)| now - *at < Duration::from_secs(1));
                    let flying: u64 = lately.map(|(one, _)| window_bytes(one)).sum();
                    let last = window_bytes(&open.last().unwrap().0);
                    prop_assert!(last == 0 || flying <= most.min(MAX_INITIAL_WINDOW_BYTES), "{flying} of {most}");
                    prop_assert!(last <= most.min(MAX_INITIAL_WINDOW_BYTES) / open.len() as u64);
                }
                CwndEvent::Record(which, flow) if !open.is_empty() => {
                    let which = which % open.len();
                    let one = &mut open[which].0;
                    most = if flow.lost_segments > one.lost_segments { 0 } else { most.max(flow.bytes_sent.min(u64::from(flow.cwnd_segments) * u64::from(SEGMENT_BYTES))) };
                    windows.record_flow(now, one, &flow);
                }
                CwndEvent::End(which) if !open.is_empty() => windows.end_use(&open.swap_remove(which % open.len()).0),
                _ => {}
            }
        }
    }
}
