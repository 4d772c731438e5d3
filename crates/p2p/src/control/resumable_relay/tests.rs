//! Streams whose relay opens late, breaks, or never opens. The tests control the clock.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use futures_util::{FutureExt, Sink, Stream, stream};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, split};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::*;
use crate::control::sequence::SequenceMessage;
use crate::migrate::{
    DirectConnection, DirectConnections, MemoryRelay, MigratingStream, RelayConnection,
    StreamFrame, StreamPath, memory_relays,
};

/// Connection to the relay that a test can cut.
struct CuttableRelay {
    end: MemoryRelay,
    cut_signal: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl CuttableRelay {
    fn check_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut_signal.poll_unpin(cx).is_ready() {
            self.cut_signal = Box::pin(std::future::ready(()));
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut"));
        }
        Ok(())
    }
}

impl Stream for CuttableRelay {
    type Item = io::Result<StreamFrame>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Err(error) = self.check_cut(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        self.end.poll_next_unpin(cx)
    }
}

impl Sink<StreamFrame> for CuttableRelay {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_cut(cx)?;
        self.end.poll_ready_unpin(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, piece: StreamFrame) -> io::Result<()> {
        self.end.start_send_unpin(piece)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end.poll_flush_unpin(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end.poll_close_unpin(cx)
    }
}

impl RelayConnection for CuttableRelay {}

/// Model of the rendezvous that both ends dial.
#[derive(Default)]
struct ExchangeModel {
    /// Number of dials of each end.
    dial_counts: [usize; 2],
    waiting: [Option<oneshot::Sender<Result<CuttableRelay, RelayFailure>>>; 2],
    /// Cut the joined connections.
    cuts: Vec<watch::Sender<bool>>,
    /// True while every dial fails.
    down: bool,
    /// True if every dial fails for good.
    refuses_dials: bool,
}

#[derive(Clone, Default)]
struct ModelExchange(Arc<Mutex<ExchangeModel>>);

struct ModelDialer {
    exchange: ModelExchange,
    at: usize,
}

impl ModelExchange {
    fn with_model<T>(&self, f: impl FnOnce(&mut ExchangeModel) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    fn dial_counts(&self) -> [usize; 2] {
        self.with_model(|inner| inner.dial_counts)
    }

    fn cut_all(&self) {
        for cut in self.with_model(|inner| std::mem::take(&mut inner.cuts)) {
            cut.send_replace(true);
        }
    }

    fn set_down(&self, down: bool) {
        self.with_model(|inner| {
            inner.down = down;
            inner.waiting = [None, None];
        });
        if down {
            self.cut_all();
        }
    }
}

fn refused_dial() -> RelayFailure {
    RelayFailure {
        error: io::Error::new(io::ErrorKind::ConnectionRefused, "no rendezvous"),
        is_final: false,
    }
}

impl RelayDial for ModelDialer {
    type Relay = CuttableRelay;

    fn dial(&mut self) -> RelayDialFuture<CuttableRelay> {
        let at = self.at;
        let dialed = self.exchange.with_model(|inner| {
            inner.dial_counts[at] += 1;
            if inner.refuses_dials {
                return Err(RelayFailure {
                    error: io::Error::other("no pass"),
                    is_final: true,
                });
            }
            if inner.down {
                return Err(refused_dial());
            }
            let (mine, joined) = oneshot::channel();
            inner.waiting[at] = Some(mine);
            if inner.waiting.iter().all(Option::is_some) {
                let (cut, is_cut) = watch::channel(false);
                inner.cuts.push(cut);
                let (near, far) = memory_relays(8);
                for (waiting, end) in inner.waiting.iter_mut().zip([near, far]) {
                    let mut is_cut = is_cut.clone();
                    let cut = Box::pin(async move {
                        if is_cut.wait_for(|cut| *cut).await.is_err() {
                            std::future::pending().await
                        }
                    });
                    let _ = waiting.take().unwrap().send(Ok(CuttableRelay {
                        end,
                        cut_signal: cut,
                    }));
                }
            }
            Ok(joined)
        });
        Box::pin(async move { dialed?.await.unwrap_or_else(|_| Err(refused_dial())) })
    }
}

/// Both ends of a stream.
struct StreamEnds {
    streams: [MigratingStream; 2],
    exchange: ModelExchange,
    status_senders: [mpsc::UnboundedSender<DirectStatus>; 2],
    connection_senders: [mpsc::UnboundedSender<io::Result<Box<dyn DirectConnection>>>; 2],
    /// Messages sent on the control connection.
    control_messages: Arc<Mutex<Vec<SequenceMessage>>>,
    /// Triggers of both searches.
    search_triggers: [Arc<Notify>; 2],
}

/// Loss on the control connection.
#[derive(Clone, Copy, PartialEq)]
enum ControlLoss {
    None,
    Everything,
    /// Everything of a side after so many messages.
    AfterFirst(usize),
}

fn stream_ends(loss: ControlLoss, timeouts: RelayTimeouts) -> StreamEnds {
    stream_ends_with_search(loss, timeouts, None)
}

/// `after`: the searches start on demand, not at the beginning.
fn stream_ends_with_search(
    loss: ControlLoss,
    timeouts: RelayTimeouts,
    after: Option<Duration>,
) -> StreamEnds {
    let searches = [(); 2].map(|()| Arc::new(Notify::new()));
    let ((a, from_a), (b, from_b)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let (exchange, messages) = (ModelExchange::default(), Arc::default());
    let end = |at, to: mpsc::UnboundedSender<SequenceMessage>, incoming| {
        let (all, count) = (
            Arc::clone(&messages),
            std::sync::atomic::AtomicUsize::new(0),
        );
        let send = Box::new(move |message: SequenceMessage| {
            let before = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let all: &Mutex<Vec<SequenceMessage>> = &all;
            all.lock().unwrap().push(message.clone());
            let delivered = match loss {
                ControlLoss::None => true,
                ControlLoss::Everything => false,
                ControlLoss::AfterFirst(most) => before < most,
            };
            if delivered {
                let _ = to.send(message); // the other end may be gone
            }
        });
        let (status_sender, statuses) = mpsc::unbounded_channel();
        let statuses = stream::unfold(statuses, |mut statuses| async {
            Some((statuses.recv().await?, statuses))
        })
        .boxed();
        let dial = ModelDialer {
            exchange: exchange.clone(),
            at,
        };
        let search = SearchWatch {
            direct_status: statuses,
            trigger: after.map(|after| (Arc::clone(&searches[at]), after)),
        };
        let relay = ResumableRelay::new(
            dial,
            ControlChannel {
                send,
                hello: None,
                incoming,
            },
            search,
            timeouts,
        );
        let (connection_sender, connections): (_, DirectConnections) = mpsc::unbounded_channel();
        (
            MigratingStream::on_relay(at == 0, Box::new(relay), connections),
            status_sender,
            connection_sender,
        )
    };
    let (near, far) = (end(0, a, from_b), end(1, b, from_a));
    StreamEnds {
        streams: [near.0, far.0],
        status_senders: [near.1, far.1],
        connection_senders: [near.2, far.2],
        exchange,
        control_messages: messages,
        search_triggers: searches,
    }
}

fn long_timeouts() -> RelayTimeouts {
    RelayTimeouts {
        head_start: Duration::from_secs(5),
        ack_timeout: Duration::from_secs(5),
        resume_timeout: Duration::from_secs(60),
    }
}

/// Age at which a link is no longer short.
const LINK_AGE: Duration = Duration::from_secs(10);

/// Returns the sides whose search was triggered.
fn started_searches(searches: &[Arc<Notify>; 2]) -> [bool; 2] {
    [0, 1].map(|side| searches[side].notified().now_or_never().is_some())
}

/// Writes bytes and reads them at the other end; drives both sides until they have arrived.
async fn send_and_read(from: &mut MigratingStream, to: &mut MigratingStream, bytes: &[u8]) {
    let mut received = vec![0; bytes.len()];
    let writes = async {
        from.write_all(bytes).await.unwrap();
        poll_fn::<(), _>(|cx| match Pin::new(&mut *from).poll_flush(cx) {
            Poll::Ready(Err(error)) => panic!("{error}"),
            _ => Poll::Pending,
        })
        .await;
    };
    tokio::select! {
        () = writes => {}
        read = to.read_exact(&mut received) => drop(read.unwrap()),
    }
    assert!(received == bytes, "something else came");
}

fn pattern_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

impl StreamEnds {
    fn connect_directly(&self) {
        let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 16);
        for (arrivals, end) in self.connection_senders.iter().zip([near, far]) {
            arrivals.send(Ok(Box::new(end))).unwrap();
        }
        // A side on the relay has dropped its receiver.
        for status_sender in &self.status_senders {
            let _ = status_sender.send(DirectStatus::Found);
        }
    }
}

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
    sleep(Duration::from_secs(300)).await;
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
    sleep(LINK_AGE * 2).await;
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
        sleep(Duration::from_secs(100)).await;
        assert!(
            ends.status_senders
                .iter()
                .all(mpsc::UnboundedSender::is_closed)
        );
    }
}

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
    sleep(Duration::from_secs(10)).await;
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
        sleep(Duration::from_secs(100)).await;
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
    sleep(Duration::from_secs(500)).await;
    assert!(!writes.is_finished());
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    assert!(received == expected);
    drop(far);
    writes.await.unwrap().unwrap();
}
