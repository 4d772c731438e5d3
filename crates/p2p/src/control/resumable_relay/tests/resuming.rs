//! Broken, refused and closed relays, and slow readers.

use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::super::*;
use super::fixture::*;
use crate::migrate::MigratingStream;

/// Cuts repeat while bytes flow both ways.
#[tokio::test(start_paused = true)]
async fn a_broken_relay_is_resumed() {
    let ends = stream_ends(
        ControlLoss::None,
        RelayTimeouts {
            head_start: Duration::ZERO,
            ..long_timeouts()
        },
    );
    let all = pattern_bytes(20 << 20);
    let cuts = tokio::spawn({
        let exchange = ends.exchange.clone();
        async move {
            for at in 0.. {
                // Cuts at changing points of the stream.
                sleep(Duration::from_millis(at % 7 * 13)).await;
                tokio::task::yield_now().await;
                exchange.cut_all();
            }
        }
    });
    let run = async |stream: MigratingStream| {
        let (mut read, mut write) = split(stream);
        let mut received = Vec::new();
        let (wrote, read) = tokio::join!(
            async {
                for part in all.chunks(100_000) {
                    write.write_all(part).await?;
                    sleep(Duration::from_millis(200)).await; // time passes between cuts
                }
                write.shutdown().await
            },
            read.read_to_end(&mut received)
        );
        wrote.unwrap();
        read.unwrap();
        assert!(received == all, "something else came");
    };
    let [near, far] = ends.streams;
    tokio::join!(run(near), run(far));
    cuts.abort();
    assert!(
        ends.exchange.dial_counts()[0] > 8,
        "{:?}",
        ends.exchange.dial_counts()
    );
}

/// The error of both sides states duration and cause.
#[tokio::test(start_paused = true)]
async fn a_relay_that_is_not_resumed_in_time_is_an_error() {
    let mut ends = stream_ends(
        ControlLoss::None,
        RelayTimeouts {
            head_start: Duration::ZERO,
            ..long_timeouts()
        },
    );
    let [near, far] = &mut ends.streams;
    send_and_read(near, far, &pattern_bytes(100_000)).await;
    let before = Instant::now();
    ends.exchange.set_down(true);
    let error = async |stream: &mut MigratingStream| {
        let error = stream.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains("60s: no rendezvous"), "{error}");
        assert!(stream.write(b"x").await.is_err());
    };
    tokio::join!(error(near), error(far));
    let tried = before.elapsed();
    assert!((60..62).contains(&tried.as_secs()), "{tried:?}");
    assert!(
        (5..30).contains(&ends.exchange.dial_counts()[0]),
        "{:?}",
        ends.exchange.dial_counts()
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_relay_is_an_error_at_once() {
    let ends = stream_ends(ControlLoss::Everything, long_timeouts());
    ends.exchange.with_model(|inner| inner.refuses_dials = true);
    ends.status_senders[0]
        .send(DirectStatus::Unavailable)
        .unwrap();
    let [mut near, _far] = ends.streams;
    assert_eq!(
        near.read(&mut [0]).await.unwrap_err().to_string(),
        "no pass"
    );
    assert_eq!(ends.exchange.dial_counts(), [1, 0]);
}

/// All written bytes arrive before the close, although the relay breaks meanwhile.
#[tokio::test(start_paused = true)]
async fn a_close_waits_until_the_peer_has_everything() {
    let ends = stream_ends(
        ControlLoss::None,
        RelayTimeouts {
            head_start: Duration::ZERO,
            ..long_timeouts()
        },
    );
    let [mut near, mut far] = ends.streams;
    let exchange = ends.exchange.clone();
    let all = pattern_bytes(1 << 20);
    send_and_read(&mut near, &mut far, &all).await;
    near.write_all(&all).await.unwrap();
    exchange.set_down(true);
    let closing = tokio::spawn(near.close());
    let reading = tokio::spawn(async move {
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        far.close().await.unwrap();
        received
    });
    sleep(Duration::from_secs(10)).await; // shorter than the resume timeout
    assert!(
        !closing.is_finished() && !reading.is_finished(),
        "the peer cannot have it"
    );
    exchange.set_down(false);
    assert!(reading.await.unwrap() == all);
    closing.await.unwrap().unwrap();
}

/// Nothing of a dropped side remains, and its peer gets an error, with and without the relay.
#[tokio::test(start_paused = true)]
async fn a_dropped_side_is_an_error_for_its_peer_at_once() {
    for (head_start, control_loss) in [
        (5, ControlLoss::None),
        (0, ControlLoss::None),
        (2, ControlLoss::AfterFirst(1)),
    ] {
        let head_start = Duration::from_secs(head_start);
        let timeouts = RelayTimeouts {
            head_start,
            ack_timeout: head_start,
            ..long_timeouts()
        };
        let StreamEnds {
            streams: [mut near, mut far],
            status_senders,
            ..
        } = stream_ends(control_loss, timeouts);
        send_and_read(&mut near, &mut far, b"hello").await;
        drop(near);
        let error = timeout(Duration::from_secs(4), far.read(&mut [0]))
            .await
            .unwrap()
            .unwrap_err();
        assert!(error.to_string().contains("before the peer did"), "{error}");
        drop(far);
        sleep(Duration::from_secs(100)).await; // longer than every timer
        assert!(status_senders.iter().all(mpsc::UnboundedSender::is_closed));
    }
}

/// A reader may pause for minutes; nothing breaks.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_back_its_writer() {
    let ends = stream_ends(
        ControlLoss::None,
        RelayTimeouts {
            head_start: Duration::ZERO,
            ..long_timeouts()
        },
    );
    let [mut near, mut far] = ends.streams;
    let all = pattern_bytes(20 << 20);
    send_and_read(&mut near, &mut far, &all).await;
    let expected = all.clone();
    let writes = tokio::spawn(async move {
        near.write_all(&all).await.unwrap();
        near.close().await
    });
    sleep(Duration::from_secs(500)).await; // the reader's pause
    assert!(!writes.is_finished());
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    assert!(received == expected);
    drop(far);
    writes.await.unwrap().unwrap();
}
