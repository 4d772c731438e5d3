//! The two ends of one stream.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::frame::{Frame, HEAD, Head, Kind, Open};

use super::shared::Shared;
use super::{Connector, End, Failure};

/// Longest time for telling a peer why this end gives up, and for reading why the peer did.
const FAREWELL: Duration = Duration::from_millis(500);
/// Longest wait of a consumer for the producer to end a stream that is through.
const CLOSING: Duration = Duration::from_secs(10);

/// Why an edge ended before its end.
enum Trouble {
    Io(io::Error),
    Told(String),
    Broken(String),
    /// Another edge, or the user's code: the peer is told.
    Elsewhere(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Trouble {
    fn of(self, peer: &str) -> Option<Failure> {
        let peer = peer.to_owned();
        match self {
            Self::Io(error) => Some(Failure::Lost { peer, why: error.to_string() }),
            Self::Told(why) => Some(Failure::Told { peer, why }),
            Self::Broken(why) => Some(Failure::Broken { peer, why }),
            Self::Elsewhere(_) => None,
        }
    }
}

/// The end that sends batches.
pub(super) async fn produce<C: Connector>(shared: Arc<Shared>, connector: Arc<C>, at: usize) {
    let peer = shared.orders.outputs[at].to.clone();
    let produced = async {
        let mut stream = connect(&shared, &*connector, End::Producer, &peer).await?;
        shared.set_route(End::Producer, at, connector.route(&stream, End::Producer));
        let open = opening(&shared, &shared.orders.name, &peer, shared.orders.outputs[at].sent + 1);
        let theirs = exchange(&shared, &mut stream, &open).await?;
        shared.set_window(at, theirs.window);
        let (mut read, mut write) = tokio::io::split(stream);
        let both =
            async { tokio::try_join!(heard(send_all(&shared, at, &mut write)), hear_acks(&shared, at, &mut read)) };
        let done = unless_elsewhere(&shared, both).await;
        leave(&*connector, told(done, &mut write).await, read.unsplit(write)).await
    };
    if let Some(failure) = produced.await.err().and_then(|trouble| trouble.of(&peer)) {
        shared.give_up(failure);
    }
}

/// The end that gets them.
pub(super) async fn consume<C: Connector>(shared: Arc<Shared>, connector: Arc<C>, at: usize) {
    let peer = shared.orders.inputs[at].from.clone();
    let consumed = async {
        let mut stream = connect(&shared, &*connector, End::Consumer, &peer).await?;
        shared.set_route(End::Consumer, at, connector.route(&stream, End::Consumer));
        let next = shared.orders.inputs[at].processed.unwrap_or(0) + 1;
        exchange(&shared, &mut stream, &opening(&shared, &peer, &shared.orders.name, next)).await?;
        let (mut read, mut write) = tokio::io::split(stream);
        let both =
            async { tokio::try_join!(heard(send_acks(&shared, at, &mut write)), hear_all(&shared, at, &mut read)) };
        let done = unless_elsewhere(&shared, both).await;
        let done = told(done, &mut write).await;
        if done.is_ok() {
            ended_by_producer(&mut read).await;
        }
        leave(&*connector, done, read.unsplit(write)).await
    };
    if let Some(failure) = consumed.await.err().and_then(|trouble| trouble.of(&peer)) {
        shared.give_up(failure);
    }
}

/// Who can write no more to a peer that has left may still read why it left: that comes first, if it comes.
async fn heard(sending: impl Future<Output = Result<(), Trouble>>) -> Result<(), Trouble> {
    let sent = sending.await;
    if let Err(Trouble::Io(_)) = &sent {
        tokio::time::sleep(FAREWELL).await;
    }
    sent
}

/// A peer hears why this end gives up, unless it was the peer who did.
async fn told(done: Result<((), ()), Trouble>, write: &mut (impl AsyncWrite + Unpin)) -> Result<(), Trouble> {
    if let Err(Trouble::Elsewhere(why) | Trouble::Broken(why)) = &done {
        let why: String = why.chars().take(4096).collect();
        let _ = timeout(FAREWELL, write_frame(write, &Frame::plain(Kind::Fail, why))).await;
    }
    done.map(drop)
}

/// The producer ends the stream once it has the last acknowledgement. Until then that may be lost with this process.
async fn ended_by_producer(read: &mut (impl AsyncRead + Unpin)) {
    let _ = timeout(CLOSING, read.read(&mut [0])).await; // however it ends: this side has all
}

/// The peer is not waited for: it has what it needs, or says itself that it has not.
async fn leave<C: Connector>(connector: &C, done: Result<(), Trouble>, stream: C::Stream) -> Result<(), Trouble> {
    let _ = timeout(FAREWELL, connector.close(stream)).await;
    done
}

fn opening(shared: &Shared, from: &str, to: &str, next: u64) -> Open {
    let (from, to) = (from.to_owned(), to.to_owned());
    Open { version: 1, from, to, attempt: shared.orders.attempt, next, window: shared.orders.window }
}

async fn connect<C: Connector>(shared: &Shared, connector: &C, end: End, peer: &str) -> Result<C::Stream, Trouble> {
    let patience = Duration::from_secs_f64(shared.orders.patience);
    let connected = async {
        let connected = timeout(patience, connector.connect(end, peer)).await;
        Ok(connected.map_err(|_| late(shared.orders.patience))??)
    };
    unless_elsewhere(shared, connected).await
}

fn late(patience: f64) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it did not come within {patience} s"))
}

/// Edges end together: when another one fails, this one has a moment for the frame that it is writing.
async fn unless_elsewhere<T>(shared: &Shared, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    tokio::select! {
        done = work => done,
        why = shared.failed() => Err(Trouble::Elsewhere(why)),
    }
}

/// Both say who they are, and must mean the same place of the same stream.
async fn exchange<S>(shared: &Shared, stream: &mut S, ours: &Open) -> Result<Open, Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let text = serde_json::to_vec(ours).map_err(|error| Trouble::Broken(error.to_string()))?;
    let said = write_frame(stream, &Frame::plain(Kind::Open, text)).await;
    let frame = timeout(Duration::from_secs_f64(shared.orders.patience), read_frame(stream)).await;
    let frame = frame.map_err(|_| late(shared.orders.patience))??; // why it left before it was written to, if it did
    said?;
    if frame.kind != Kind::Open {
        return Err(Trouble::Broken(format!("{:?} came first", frame.kind)));
    }
    let theirs: Open = serde_json::from_slice(&frame.payload).map_err(|error| Trouble::Broken(error.to_string()))?;
    let same = |open: &Open| (open.version, open.from.clone(), open.to.clone(), open.attempt, open.next);
    if same(&theirs) == same(ours) {
        Ok(theirs)
    } else {
        Err(Trouble::Broken(format!("it opens {theirs:?}, not {ours:?}")))
    }
}

async fn send_all(shared: &Shared, at: usize, write: &mut (impl AsyncWrite + Unpin)) -> Result<(), Trouble> {
    loop {
        here(shared)?;
        match shared.pop(at)? {
            Some(frame) => write_frame(write, &frame).await?,
            None if shared.has_sent_end(at) => return Ok(()),
            None => shared.something_to_send(at).await,
        }
    }
}

async fn hear_acks(shared: &Shared, at: usize, read: &mut (impl AsyncRead + Unpin)) -> Result<(), Trouble> {
    loop {
        let frame = read_frame(read).await?;
        match frame.kind {
            Kind::Ack if shared.acknowledged(at, frame.sequence).map_err(Trouble::Broken)? => return Ok(()),
            Kind::Ack => {}
            other => return Err(Trouble::Broken(format!("{other:?} from a consumer"))),
        }
    }
}

async fn hear_all(shared: &Shared, at: usize, read: &mut (impl AsyncRead + Unpin)) -> Result<(), Trouble> {
    loop {
        let frame = read_frame(read).await?;
        let last = frame.kind == Kind::End;
        shared.push(at, frame).map_err(Trouble::Broken)?;
        if last {
            return Ok(());
        }
    }
}

async fn send_acks(shared: &Shared, at: usize, write: &mut (impl AsyncWrite + Unpin)) -> Result<(), Trouble> {
    let mut told = shared.processed(at).0;
    loop {
        here(shared)?;
        let (processed, all) = shared.processed(at);
        if processed > told {
            told = processed;
            write_frame(write, &Frame { kind: Kind::Ack, sequence: processed, payload: Bytes::new() }).await?;
        }
        if all {
            return Ok(());
        }
        shared.something_to_acknowledge(at).await;
    }
}

fn here(shared: &Shared) -> Result<(), Trouble> {
    shared.failure().map_or(Ok(()), |failure| Err(Trouble::Elsewhere(failure.to_string())))
}

async fn write_frame(write: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let head = frame.head();
    let mut rest = Buf::chain(&head[..], &frame.payload[..]);
    while rest.has_remaining() {
        let mut slices = [IoSlice::new(&[]); 2];
        let count = rest.chunks_vectored(&mut slices);
        let written = write.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest.advance(written);
    }
    write.flush().await
}

/// A peer's farewell is trouble, like a frame that is none.
async fn read_frame(read: &mut (impl AsyncRead + Unpin)) -> Result<Frame, Trouble> {
    let mut head = [0; HEAD];
    read.read_exact(&mut head).await?;
    let head = Head::read(&head).map_err(|error| Trouble::Broken(error.to_string()))?;
    let mut payload = BytesMut::with_capacity(head.length);
    while payload.len() < head.length {
        if (&mut *read).take((head.length - payload.len()) as u64).read_buf(&mut payload).await? == 0 {
            return Err(Trouble::Io(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    let frame = head.close(payload.freeze()).map_err(|error| Trouble::Broken(error.to_string()))?;
    match frame.kind {
        Kind::Fail => Err(Trouble::Told(String::from_utf8_lossy(&frame.payload).into_owned())),
        _ => Ok(frame),
    }
}
