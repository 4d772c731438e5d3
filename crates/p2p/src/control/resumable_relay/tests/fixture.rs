//! Model of the rendezvous, with relays that a test cuts and control connections that lose messages.

use std::future::poll_fn;
use std::sync::Mutex;

use futures_util::{FutureExt, Sink, Stream, stream};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::super::*;
use crate::control::sequence::SequenceMessage;
use crate::migrate::{
    DirectConnection, DirectConnections, MemoryRelay, MigratingStream, RelayConnection,
    StreamFrame, memory_relays,
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
pub(super) struct ExchangeModel {
    /// Number of dials of each end.
    dial_counts: [usize; 2],
    waiting: [Option<oneshot::Sender<Result<CuttableRelay, RelayFailure>>>; 2],
    /// Cut the joined connections.
    cuts: Vec<watch::Sender<bool>>,
    /// True while every dial fails.
    down: bool,
    /// True if every dial fails for good.
    pub(super) refuses_dials: bool,
}

#[derive(Clone, Default)]
pub(super) struct ModelExchange(Arc<Mutex<ExchangeModel>>);

struct ModelDialer {
    exchange: ModelExchange,
    at: usize,
}

impl ModelExchange {
    pub(super) fn with_model<T>(&self, f: impl FnOnce(&mut ExchangeModel) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    pub(super) fn dial_counts(&self) -> [usize; 2] {
        self.with_model(|inner| inner.dial_counts)
    }

    pub(super) fn cut_all(&self) {
        for cut in self.with_model(|inner| std::mem::take(&mut inner.cuts)) {
            cut.send_replace(true);
        }
    }

    pub(super) fn set_down(&self, down: bool) {
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
pub(super) struct StreamEnds {
    pub(super) streams: [MigratingStream; 2],
    pub(super) exchange: ModelExchange,
    pub(super) status_senders: [mpsc::UnboundedSender<DirectStatus>; 2],
    connection_senders: [mpsc::UnboundedSender<io::Result<Box<dyn DirectConnection>>>; 2],
    /// Messages sent on the control connection.
    pub(super) control_messages: Arc<Mutex<Vec<SequenceMessage>>>,
    /// Triggers of both searches.
    pub(super) search_triggers: [Arc<Notify>; 2],
}

/// Loss on the control connection.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ControlLoss {
    None,
    Everything,
    /// Everything of a side after so many messages.
    AfterFirst(usize),
}

pub(super) fn stream_ends(loss: ControlLoss, timeouts: RelayTimeouts) -> StreamEnds {
    stream_ends_with_search(loss, timeouts, None)
}

/// `after`: the searches start on demand, not at the beginning.
pub(super) fn stream_ends_with_search(
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

pub(super) fn long_timeouts() -> RelayTimeouts {
    RelayTimeouts {
        head_start: Duration::from_secs(5),
        ack_timeout: Duration::from_secs(5),
        resume_timeout: Duration::from_secs(60),
    }
}

/// Age at which a link is no longer short.
pub(super) const LINK_AGE: Duration = Duration::from_secs(10);

/// Returns the sides whose search was triggered.
pub(super) fn started_searches(searches: &[Arc<Notify>; 2]) -> [bool; 2] {
    [0, 1].map(|side| searches[side].notified().now_or_never().is_some())
}

/// Writes bytes and reads them at the other end; drives both sides until they have arrived.
pub(super) async fn send_and_read(
    from: &mut MigratingStream,
    to: &mut MigratingStream,
    bytes: &[u8],
) {
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

pub(super) fn pattern_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

impl StreamEnds {
    pub(super) fn connect_directly(&self) {
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
