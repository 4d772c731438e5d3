//! Cases in which the relay is opened, and cases in which it is not.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::super::*;
use super::fixture::*;
use crate::migrate::StreamPath;

/// A handshake, some bytes, a move and an end never dial the relay, then or later.
#[tokio::test(start_paused = true)]
async fn a_stream_that_moves_soon_opens_no_relay() {
    let mut ends = stream_ends(ControlLoss::None, long_timeouts());
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, b"hello").await;
    send_and_read(far, near, &pattern_bytes(3000)).await;
    send_and_read(near, far, b"first").await;
    let paths = [near.paths(), far.paths()];
    ends.connect_directly();
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, &pattern_bytes(200_000)).await;
    send_and_read(far, near, &pattern_bytes(200_000)).await;
    assert!(
        paths
            .iter()
            .all(|places| places.borrow().outgoing == StreamPath::Direct)
    );
    sleep(Duration::from_secs(300)).await; // longer than every timer
    assert_eq!(ends.exchange.dial_counts(), [0, 0]);
    assert!(ends.control_messages.lock().unwrap().len() < 20);
    // Both have closed: their control channels are dropped, and with them the session.
    assert!(
        ends.status_senders
            .iter()
            .all(mpsc::UnboundedSender::is_closed)
    );
}

/// Control: without a direct connection the relay is dialled when the head start is over, not
/// before.
#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_move_opens_the_relay() {
    let mut ends = stream_ends(ControlLoss::None, long_timeouts());
    let exchange = ends.exchange.clone();
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, b"hello").await;
    let all = pattern_bytes(500_000);
    let both = async { send_and_read(near, far, &all).await };
    tokio::pin!(both);
    assert!(
        timeout(Duration::from_millis(4900), &mut both)
            .await
            .is_err(),
        "16 KiB and no more"
    );
    assert_eq!(exchange.dial_counts(), [0, 0]);
    both.await;
    assert_eq!(exchange.dial_counts(), [1, 1]);
}

/// Bytes within the quota and a close neither start a search nor dial the relay.
#[tokio::test(start_paused = true)]
async fn a_short_link_starts_no_search() {
    let mut ends = stream_ends_with_search(ControlLoss::None, long_timeouts(), Some(LINK_AGE));
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, &pattern_bytes(100_000)).await;
    send_and_read(far, near, &pattern_bytes(100_000)).await;
    let [near, far] = ends.streams;
    tokio::try_join!(near.close(), far.close()).unwrap();
    sleep(LINK_AGE * 2).await; // no timer of a closed link fires
    assert_eq!(
        (
            ends.exchange.dial_counts(),
            started_searches(&ends.search_triggers)
        ),
        ([0, 0], [false, false])
    );
}

/// The writing side starts its search at half of the quota.
#[tokio::test(start_paused = true)]
async fn a_link_that_carries_more_starts_a_search() {
    let mut ends = stream_ends_with_search(ControlLoss::None, long_timeouts(), Some(LINK_AGE));
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, &pattern_bytes(140_000)).await;
    assert_eq!(
        (
            ends.exchange.dial_counts(),
            started_searches(&ends.search_triggers)
        ),
        ([0, 0], [true, false])
    );
    // Both search now: the relay waits for the head start.
    ends.status_senders
        .iter()
        .for_each(|prospects| prospects.send(DirectStatus::Searching).unwrap());
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, &pattern_bytes(100_000)).await;
    let all = pattern_bytes(500_000);
    let rest = async { send_and_read(near, far, &all).await };
    tokio::pin!(rest);
    assert!(
        timeout(Duration::from_millis(4900), &mut rest)
            .await
            .is_err(),
        "256 KiB and no more"
    );
    assert_eq!(ends.exchange.dial_counts(), [0, 0]);
    rest.await;
    assert_eq!(ends.exchange.dial_counts(), [1, 1]);
}

/// A late reader learns only that the direct connection exists, not that a search ran.
#[tokio::test(start_paused = true)]
async fn frames_lost_on_the_control_connection_go_over_the_relay_before_a_late_move() {
    let mut ends =
        stream_ends_with_search(ControlLoss::AfterFirst(2), long_timeouts(), Some(LINK_AGE));
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, &pattern_bytes(40_000)).await;
    ends.connect_directly();
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, &pattern_bytes(200_000)).await;
    send_and_read(far, near, &pattern_bytes(200_000)).await;
    assert_eq!(ends.exchange.dial_counts(), [1, 1]);
}

/// However few bytes it carries.
#[tokio::test(start_paused = true)]
async fn a_long_lived_link_starts_a_search() {
    let mut ends = stream_ends_with_search(ControlLoss::None, long_timeouts(), Some(LINK_AGE));
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, b"hello").await;
    let mut byte = [0];
    let waits = async { tokio::join!(near.read(&mut byte), far.write_all(&[])) };
    let _ = timeout(LINK_AGE + Duration::from_secs(1), waits).await;
    assert!(started_searches(&ends.search_triggers)[0]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_search_opens_the_relay_at_once() {
    let mut ends = stream_ends(ControlLoss::None, long_timeouts());
    ends.status_senders
        .iter()
        .for_each(|prospects| prospects.send(DirectStatus::Unavailable).unwrap());
    let [near, far] = &mut ends.streams;
    timeout(
        Duration::from_secs(1),
        send_and_read(near, far, &pattern_bytes(500_000)),
    )
    .await
    .unwrap();
    assert_eq!(ends.exchange.dial_counts(), [1, 1]);
}

/// Lost frames go over the relay, whichever is the first one; switch messages, too.
#[tokio::test(start_paused = true)]
async fn frames_lost_on_the_control_connection_go_over_the_relay() {
    for loss in (0..12)
        .map(ControlLoss::AfterFirst)
        .chain([ControlLoss::Everything])
    {
        let mut ends = stream_ends(loss, long_timeouts());
        let [near, far] = &mut ends.streams;
        send_and_read(near, far, b"hello").await;
        send_and_read(far, near, &pattern_bytes(9000)).await;
        ends.connect_directly();
        let [near, far] = &mut ends.streams;
        for _ in 0..3 {
            send_and_read(near, far, &pattern_bytes(1000)).await;
            send_and_read(far, near, &pattern_bytes(1000)).await;
        }
        let direct = ends
            .streams
            .iter()
            .all(|stream| stream.paths().borrow().outgoing == StreamPath::Direct);
        assert!(
            direct || loss == ControlLoss::Everything,
            "it moves all the same"
        );
        sleep(Duration::from_secs(100)).await; // longer than every timer
        assert!(
            ends.status_senders
                .iter()
                .all(mpsc::UnboundedSender::is_closed)
        );
    }
}
