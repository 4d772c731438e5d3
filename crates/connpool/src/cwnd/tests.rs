//! Simulated paths over time, with arbitrary flows.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SEGMENT_BYTES: u32 = 1_448;

/// Returns the flow of a connection that had `bytes` in flight at once and sent twice as many.
fn flow_with(bytes: u64) -> TcpFlowInfo {
    let round_trip = Duration::from_millis(2);
    let window = u32::try_from(bytes.div_ceil(SEGMENT_BYTES.into())).unwrap();
    TcpFlowInfo {
        mss_bytes: SEGMENT_BYTES,
        cwnd_segments: window,
        min_rtt: Some(round_trip),
        delivery_rate: bytes * 500,
        max_pacing_rate: u64::MAX,
        bytes_sent: 2 * bytes,
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

fn window_bytes(path_use: &PathUse) -> u64 {
    path_use.initial_window.map_or(0, |window| window.bytes)
}

/// Returns a cache after one connection that proved `proven` bytes.
fn cache_with(now: Instant, proven: u64) -> CwndCache {
    let mut cache = CwndCache::default();
    use_once(&mut cache, now, &flow_with(proven));
    cache
}

/// Uses one connection with `flow`; returns the bytes of its initial window.
fn use_once(cache: &mut CwndCache, now: Instant, flow: &TcpFlowInfo) -> u64 {
    let mut path_use = cache.begin_use(now, path_key("f", 1), &fresh_flow());
    cache.record_flow(now, &mut path_use, flow);
    cache.end_use(&path_use);
    window_bytes(&path_use)
}

fn next_window(cache: &mut CwndCache, now: Instant) -> u64 {
    use_once(cache, now, &fresh_flow())
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
    let mut cache = cache_with(now, 100_000);
    let path_use = cache.begin_use(now, path_key("f", 1), &fresh_flow());
    assert_roughly(window_bytes(&path_use), 100_000);
    let pace = u64::from(path_use.initial_window.unwrap().pacing_rate);
    assert!(
        (50_000_000..=62_500_000).contains(&pace),
        "{pace}: a quarter more than arrived"
    );
}

/// A program writes everything, waits for the answer and closes: the last delivery is a single slow
/// segment.
#[test]
fn a_slow_last_segment_does_not_hide_the_window() {
    let now = Instant::now();
    let slow = TcpFlowInfo {
        delivery_rate: u64::from(SEGMENT_BYTES) * 500,
        ..flow_with(100_000)
    };
    let mut cache = CwndCache::default();
    use_once(&mut cache, now, &slow);
    let path_use = cache.begin_use(now, path_key("f", 1), &fresh_flow());
    assert_roughly(
        window_bytes(&path_use),
        u64::from(slow.cwnd_segments / 2 * SEGMENT_BYTES),
    );
    let pace = u64::from(path_use.initial_window.unwrap().pacing_rate);
    assert!(
        (25_000_000..=32_000_000).contains(&pace),
        "{pace}: a quarter more than arrived"
    );
}

/// A window of the initial size proves nothing about the capacity.
#[test]
fn a_window_that_has_not_grown_shows_nothing() {
    let now = Instant::now();
    let mut cache = cache_with(now, 100_000);
    let mut path_use = cache.begin_use(now, path_key("f", 1), &fresh_flow());
    let began = path_use.initial_window.unwrap().segments;
    let little = TcpFlowInfo {
        cwnd_segments: began,
        delivery_rate: 1_000,
        bytes_sent: 1_000_000,
        ..flow_with(100_000)
    };
    cache.record_flow(now + MINUTE, &mut path_use, &little);
    cache.end_use(&path_use);
    assert_roughly(next_window(&mut cache, now + MINUTE), 50_000);
}

#[test]
fn owners_and_epochs_do_not_share_a_history() {
    let now = Instant::now();
    let mut cache = cache_with(now, 100_000);
    for other in [path_key("g", 1), path_key("f", 2)] {
        assert_eq!(
            cache.begin_use(now, other, &fresh_flow()).initial_window,
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
    let mut cache = cache_with(now, 800_000);
    use_once(&mut cache, now + MINUTE / 2, &flow_with(500_000));
    assert_roughly(next_window(&mut cache, now + MINUTE), 800_000);
    use_once(&mut cache, now + MINUTE, &flow_with(100_000));
    assert_roughly(next_window(&mut cache, now + MINUTE * 2), 400_000);
}

#[test]
fn a_loss_resets_the_window_and_is_remembered() {
    let now = Instant::now();
    let mut cache = cache_with(now, 400_000);
    use_once(
        &mut cache,
        now,
        &TcpFlowInfo {
            lost_segments: 1,
            ..flow_with(400_000)
        },
    );
    assert_eq!(next_window(&mut cache, now), 0);
    use_once(&mut cache, now, &flow_with(400_000));
    assert_roughly(next_window(&mut cache, now), 200_000);
    use_once(&mut cache, now + MINUTE, &flow_with(400_000));
    assert_roughly(next_window(&mut cache, now + MINUTE), 400_000);
}

#[test]
fn a_loss_on_a_small_window_does_not_last() {
    let now = Instant::now();
    let mut cache = CwndCache::default();
    use_once(
        &mut cache,
        now,
        &TcpFlowInfo {
            lost_segments: 1,
            ..flow_with(0)
        },
    );
    use_once(&mut cache, now, &flow_with(400_000));
    assert_roughly(next_window(&mut cache, now), 32 << 10);
    use_once(&mut cache, now + MINUTE, &flow_with(400_000));
    assert_roughly(next_window(&mut cache, now + MINUTE), 64 << 10);
}

#[test]
fn a_loss_counts_once() {
    let now = Instant::now();
    let (mut cache, mut lossy_flow) = (cache_with(now, 400_000), flow_with(400_000));
    let mut path_use = cache.begin_use(now, path_key("f", 1), &fresh_flow());
    lossy_flow.lost_segments = 3;
    cache.record_flow(now, &mut path_use, &lossy_flow);
    cache.record_flow(now, &mut path_use, &lossy_flow);
    cache.end_use(&path_use);
    assert_roughly(next_window(&mut cache, now), 200_000);
}

#[test]
fn concurrent_connections_share_the_window() {
    let now = Instant::now();
    let mut cache = cache_with(now, 400_000);
    let first = cache.begin_use(now, path_key("f", 1), &fresh_flow());
    let second = cache.begin_use(now, path_key("f", 1), &fresh_flow());
    assert_roughly(window_bytes(&first), 400_000);
    assert_eq!(second.initial_window, None, "the first fills the path");
    let third = cache.begin_use(
        now + Duration::from_secs(2),
        path_key("f", 1),
        &fresh_flow(),
    );
    assert_roughly(window_bytes(&third), 400_000 / 3);
    [&first, &second, &third]
        .iter()
        .for_each(|path_use| cache.end_use(path_use));
    assert_roughly(next_window(&mut cache, now), 400_000);
}

#[test]
fn the_number_of_remembered_paths_is_bounded() {
    let (mut cache, now) = (CwndCache::default(), Instant::now());
    for epoch in 0..3_000 {
        let path_use = cache.begin_use(now, path_key("f", epoch), &fresh_flow());
        cache.end_use(&path_use);
    }
    assert_eq!(cache.len(), 1_024);
}

const MINUTE: Duration = Duration::from_secs(60);

/// Events at increasing times.
#[derive(Debug, Clone)]
enum CwndEvent {
    Begin,
    Record(usize, TcpFlowInfo),
    End(usize),
}

fn cwnd_event() -> impl Strategy<Value = (u64, CwndEvent)> {
    let lossy_flow = (
        1..3_000_000u64,
        0..4_000_000u64,
        0..20_000u32,
        1..200_000u64,
        0..3u32,
    );
    let lossy_flow = lossy_flow.prop_map(|(rate, sent, window, micros, lost)| TcpFlowInfo {
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
        (any::<usize>(), lossy_flow).prop_map(|(which, flow)| CwndEvent::Record(which, flow)),
        any::<usize>().prop_map(CwndEvent::End),
    ];
    (prop_oneof![Just(0), 0..500u64, 0..200_000u64], what)
}

proptest! {
    /// All first flights within a second stay below the bytes proven since the last loss, and below
    /// the maximum.
    #[test]
    fn no_connection_begins_with_more_than_was_proven(events in prop::collection::vec(cwnd_event(), 1..200)) {
        let (mut cache, mut now, mut proven) = (CwndCache::default(), Instant::now(), 0u64);
        let mut open: Vec<(PathUse, Instant)> = Vec::new();
        for (millis, event) in events {
            now += Duration::from_millis(millis);
            match event {
                CwndEvent::Begin => {
                    let path_use = cache.begin_use(now, path_key("f", 1), &fresh_flow());
                    open.push((path_use, now));
                    let lately = open.iter().filter(|(_, at)| now - *at < Duration::from_secs(1));
                    let flying: u64 = lately.map(|(path_use, _)| window_bytes(path_use)).sum();
                    let last = window_bytes(&open.last().unwrap().0);
                    prop_assert!(last == 0 || flying <= proven.min(MAX_INITIAL_WINDOW_BYTES), "{flying} of {proven}");
                    prop_assert!(last <= proven.min(MAX_INITIAL_WINDOW_BYTES) / open.len() as u64);
                }
                CwndEvent::Record(which, flow) if !open.is_empty() => {
                    let which = which % open.len();
                    let path_use = &mut open[which].0;
                    proven = if flow.lost_segments > path_use.lost_segments { 0 } else { proven.max(flow.bytes_sent.min(u64::from(flow.cwnd_segments) * u64::from(SEGMENT_BYTES))) };
                    cache.record_flow(now, path_use, &flow);
                }
                CwndEvent::End(which) if !open.is_empty() => cache.end_use(&open.swap_remove(which % open.len()).0),
                _ => {}
            }
        }
    }
}
