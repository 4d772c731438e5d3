//! Both ends of one stream.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::frame::{EdgeFrame, FrameHeader, FrameKind, HEADER_BYTES, OpenFrame};

use super::shared::WorkerShared;
use super::{EdgeConnector, EdgeEnd, WorkerFailure};

/// Time to send a peer the reason of a failure, and to read the peer's reason.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// Time for the producer to close a finished stream, as `contract/dataflow.md` has it.
const PRODUCER_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Reasons why an edge ended early.
enum EdgeError {
    Io(io::Error),
    PeerFailed(String),
    ProtocolViolation(String),
    /// Another edge or the user's code failed: the reason is sent to the peer.
    FailedElsewhere(String),
}

impl From<io::Error> for EdgeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl EdgeError {
    fn into_failure(self, peer: &str) -> Option<WorkerFailure> {
        let peer = peer.to_owned();
        match self {
            Self::Io(error) => Some(WorkerFailure::StreamLost {
                peer,
                why: error.to_string(),
            }),
            Self::PeerFailed(why) => Some(WorkerFailure::PeerFailed { peer, why }),
            Self::ProtocolViolation(why) => Some(WorkerFailure::ProtocolViolation { peer, why }),
            // Recorded already, by the edge or call that failed first.
            Self::FailedElsewhere(_) => None,
        }
    }
}

/// Runs the end that sends batches.
pub(super) async fn run_producer<C: EdgeConnector>(
    shared: Arc<WorkerShared>,
    connector: Arc<C>,
    at: usize,
) {
    let peer = shared.assignment.outputs[at].to.clone();
    let result = async {
        let mut stream = connect_peer(&shared, &*connector, EdgeEnd::Producer, &peer).await?;
        shared.set_path_probe(
            EdgeEnd::Producer,
            at,
            connector.path_probe(&stream, EdgeEnd::Producer),
        );
        let open = open_frame(
            &shared,
            &shared.assignment.name,
            &peer,
            shared.assignment.outputs[at].sent + 1,
        );
        let theirs = exchange_open(&shared, &mut stream, &open).await?;
        shared.set_send_window(at, theirs.window);
        let (mut read, mut write) = tokio::io::split(stream);
        let transfers = async {
            tokio::try_join!(
                wait_for_peer_reason(send_frames(&shared, at, &mut write)),
                receive_acks(&shared, at, &mut read)
            )
        };
        let result = unless_failed(&shared, transfers).await;
        close_stream(
            &*connector,
            report_failure(result, &mut write).await,
            read.unsplit(write),
        )
        .await
    };
    if let Some(failure) = result
        .await
        .err()
        .and_then(|error| error.into_failure(&peer))
    {
        shared.record_failure(failure);
    }
}

/// Runs the end that receives batches.
pub(super) async fn run_consumer<C: EdgeConnector>(
    shared: Arc<WorkerShared>,
    connector: Arc<C>,
    at: usize,
) {
    let peer = shared.assignment.inputs[at].from.clone();
    let result = async {
        let mut stream = connect_peer(&shared, &*connector, EdgeEnd::Consumer, &peer).await?;
        shared.set_path_probe(
            EdgeEnd::Consumer,
            at,
            connector.path_probe(&stream, EdgeEnd::Consumer),
        );
        // An input of a resumed attempt continues behind the last processed frame of the
        // checkpoint.
        let next = shared.assignment.inputs[at].processed.unwrap_or(0) + 1;
        exchange_open(
            &shared,
            &mut stream,
            &open_frame(&shared, &peer, &shared.assignment.name, next),
        )
        .await?;
        let (mut read, mut write) = tokio::io::split(stream);
        let transfers = async {
            tokio::try_join!(
                wait_for_peer_reason(send_acks(&shared, at, &mut write)),
                receive_frames(&shared, at, &mut read)
            )
        };
        let result = unless_failed(&shared, transfers).await;
        let result = report_failure(result, &mut write).await;
        // After a failure the peer closes by itself; only a complete stream has a last ack to
        // protect.
        if result.is_ok() {
            wait_for_producer_end(&mut read).await;
        }
        close_stream(&*connector, result, read.unsplit(write)).await
    };
    if let Some(failure) = result
        .await
        .err()
        .and_then(|error| error.into_failure(&peer))
    {
        shared.record_failure(failure);
    }
}

/// Waits a moment after a failed write: a peer that has left may have sent its reason, which the
/// reading half then reports.
async fn wait_for_peer_reason(
    sending: impl Future<Output = Result<(), EdgeError>>,
) -> Result<(), EdgeError> {
    let sent = sending.await;
    if let Err(EdgeError::Io(_)) = &sent {
        tokio::time::sleep(CLOSE_GRACE).await;
    }
    sent
}

/// Sends the peer the reason of a failure, unless the peer failed itself.
async fn report_failure(
    result: Result<((), ()), EdgeError>,
    write: &mut (impl AsyncWrite + Unpin),
) -> Result<(), EdgeError> {
    if let Err(EdgeError::FailedElsewhere(why) | EdgeError::ProtocolViolation(why)) = &result {
        // The text of a failure is at most 64 KiB on the wire; 4096 characters are at most 16 KiB
        // of UTF-8.
        let why: String = why.chars().take(4096).collect();
        let _ = timeout(
            CLOSE_GRACE,
            write_frame(write, &EdgeFrame::unnumbered(FrameKind::Fail, why)),
        )
        .await;
    }
    result.map(drop)
}

/// Waits until the producer closes the stream, which it does once it has the last ack. Until then
/// that ack could be lost with this process.
async fn wait_for_producer_end(read: &mut (impl AsyncRead + Unpin)) {
    // Any result will do: this side has everything.
    let _ = timeout(PRODUCER_END_TIMEOUT, read.read(&mut [0])).await;
}

/// Closes the stream within [`CLOSE_GRACE`]: a peer that still needs bytes reports the loss itself.
async fn close_stream<C: EdgeConnector>(
    connector: &C,
    result: Result<(), EdgeError>,
    stream: C::Stream,
) -> Result<(), EdgeError> {
    let _ = timeout(CLOSE_GRACE, connector.close(stream)).await;
    result
}

fn open_frame(shared: &WorkerShared, from: &str, to: &str, next: u64) -> OpenFrame {
    let (from, to) = (from.to_owned(), to.to_owned());
    OpenFrame {
        version: 1,
        from,
        to,
        attempt: shared.assignment.attempt,
        next,
        window: shared.assignment.window,
    }
}

async fn connect_peer<C: EdgeConnector>(
    shared: &WorkerShared,
    connector: &C,
    end: EdgeEnd,
    peer: &str,
) -> Result<C::Stream, EdgeError> {
    let connect_timeout = Duration::from_secs_f64(shared.assignment.connect_timeout);
    let connected = async {
        let connected = timeout(connect_timeout, connector.connect(end, peer)).await;
        Ok(connected.map_err(|_| peer_timeout(shared.assignment.connect_timeout))??)
    };
    unless_failed(shared, connected).await
}

fn peer_timeout(seconds: f64) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("peer did not connect within {seconds} s"),
    )
}

/// Runs `work` until another edge fails. The edge then has a moment to finish the frame that it is
/// writing.
async fn unless_failed<T>(
    shared: &WorkerShared,
    work: impl Future<Output = Result<T, EdgeError>>,
) -> Result<T, EdgeError> {
    tokio::select! {
        done = work => done,
        why = shared.wait_for_failure() => Err(EdgeError::FailedElsewhere(why)),
    }
}

/// Exchanges open frames. Both ends must name the same position of the same stream.
async fn exchange_open<S>(
    shared: &WorkerShared,
    stream: &mut S,
    ours: &OpenFrame,
) -> Result<OpenFrame, EdgeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let text = serde_json::to_vec(ours)
        .map_err(|error| EdgeError::ProtocolViolation(error.to_string()))?;
    let sent = write_frame(stream, &EdgeFrame::unnumbered(FrameKind::Open, text)).await;
    // Read even when the write failed: the peer may have sent a reason before it closed.
    let frame = timeout(
        Duration::from_secs_f64(shared.assignment.connect_timeout),
        read_frame(stream),
    )
    .await;
    // Before the write error: the peer's reason says more.
    let frame = frame.map_err(|_| peer_timeout(shared.assignment.connect_timeout))??;
    sent?;
    if frame.kind != FrameKind::Open {
        return Err(EdgeError::ProtocolViolation(format!(
            "expected an open frame first, got {:?}",
            frame.kind
        )));
    }
    let theirs: OpenFrame = serde_json::from_slice(&frame.payload)
        .map_err(|error| EdgeError::ProtocolViolation(error.to_string()))?;
    // All but the window: only the consumer's counts.
    let same = |open: &OpenFrame| {
        (
            open.version,
            open.from.clone(),
            open.to.clone(),
            open.attempt,
            open.next,
        )
    };
    if same(&theirs) == same(ours) {
        Ok(theirs)
    } else {
        Err(EdgeError::ProtocolViolation(format!(
            "open frames differ: got {theirs:?}, expected {ours:?}"
        )))
    }
}

async fn send_frames(
    shared: &WorkerShared,
    at: usize,
    write: &mut (impl AsyncWrite + Unpin),
) -> Result<(), EdgeError> {
    loop {
        check_running(shared)?;
        match shared.next_frame(at)? {
            Some(frame) => write_frame(write, &frame).await?,
            // The end is sent, so no frame can follow; acks are read by the other half.
            None if shared.has_sent_end(at) => return Ok(()),
            None => shared.wait_for_frame(at).await,
        }
    }
}

async fn receive_acks(
    shared: &WorkerShared,
    at: usize,
    read: &mut (impl AsyncRead + Unpin),
) -> Result<(), EdgeError> {
    loop {
        let frame = read_frame(read).await?;
        match frame.kind {
            FrameKind::Ack
                if shared
                    .handle_ack(at, frame.sequence)
                    .map_err(EdgeError::ProtocolViolation)? =>
            {
                return Ok(());
            }
            FrameKind::Ack => {}
            other => {
                return Err(EdgeError::ProtocolViolation(format!(
                    "unexpected frame {other:?} from a consumer"
                )));
            }
        }
    }
}

async fn receive_frames(
    shared: &WorkerShared,
    at: usize,
    read: &mut (impl AsyncRead + Unpin),
) -> Result<(), EdgeError> {
    loop {
        let frame = read_frame(read).await?;
        let last = frame.kind == FrameKind::End;
        shared
            .receive_frame(at, frame)
            .map_err(EdgeError::ProtocolViolation)?;
        if last {
            return Ok(());
        }
    }
}

async fn send_acks(
    shared: &WorkerShared,
    at: usize,
    write: &mut (impl AsyncWrite + Unpin),
) -> Result<(), EdgeError> {
    let mut acknowledged = shared.ack_position(at).0;
    loop {
        check_running(shared)?;
        let (processed, all) = shared.ack_position(at);
        // Acks are cumulative: several processed batches need one frame.
        if processed > acknowledged {
            acknowledged = processed;
            write_frame(
                write,
                &EdgeFrame {
                    kind: FrameKind::Ack,
                    sequence: processed,
                    payload: Bytes::new(),
                },
            )
            .await?;
        }
        // Checked after the ack of the end, which the producer waits for.
        if all {
            return Ok(());
        }
        shared.wait_for_ack(at).await;
    }
}

fn check_running(shared: &WorkerShared) -> Result<(), EdgeError> {
    shared.current_failure().map_or(Ok(()), |failure| {
        Err(EdgeError::FailedElsewhere(failure.to_string()))
    })
}

async fn write_frame(write: &mut (impl AsyncWrite + Unpin), frame: &EdgeFrame) -> io::Result<()> {
    let header = frame.encode_header();
    // Vectored: one write for header and payload, without copying the payload.
    let mut unsent = Buf::chain(&header[..], &frame.payload[..]);
    while unsent.has_remaining() {
        let mut slices = [IoSlice::new(&[]); 2];
        let count = unsent.chunks_vectored(&mut slices);
        let written = write.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        unsent.advance(written);
    }
    write.flush().await
}

/// Reads a frame. A failure reported by the peer is an error, like malformed bytes.
async fn read_frame(read: &mut (impl AsyncRead + Unpin)) -> Result<EdgeFrame, EdgeError> {
    let mut bytes = [0; HEADER_BYTES];
    read.read_exact(&mut bytes).await?;
    let header = FrameHeader::parse(&bytes)
        .map_err(|error| EdgeError::ProtocolViolation(error.to_string()))?;
    // At most 64 MiB: the header was checked before.
    let mut payload = BytesMut::with_capacity(header.length);
    while payload.len() < header.length {
        if (&mut *read)
            .take((header.length - payload.len()) as u64)
            .read_buf(&mut payload)
            .await?
            == 0
        {
            return Err(EdgeError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    let frame = header
        .into_frame(payload.freeze())
        .map_err(|error| EdgeError::ProtocolViolation(error.to_string()))?;
    match frame.kind {
        FrameKind::Fail => Err(EdgeError::PeerFailed(
            String::from_utf8_lossy(&frame.payload).into_owned(),
        )),
        _ => Ok(frame),
    }
}
