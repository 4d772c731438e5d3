//! Migrating stream: [`StreamSwitch`] with a relay and a direct connection.

mod io_traits;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use super::relay::{RelayConnection, StreamFrame};
use super::stream_switch::{ReadSource, StreamSwitch};
use super::switch_message::SwitchMessage;
use super::wakers::ReadWriteWakers;

/// Time for the other end to close the relay, too.
const RELAY_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Work that remains after a close.
pub type CloseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Byte stream in both directions, of any kind.
pub trait DuplexIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> DuplexIo for S {}

/// Direct connection to the peer.
pub trait DirectConnection: DuplexIo {
    /// Returns what must run after the last read and write, so that the peer gets all bytes and the
    /// end.
    ///
    /// `None`: the kernel does this.
    fn linger_future(&mut self) -> Option<CloseFuture> {
        None
    }
}

impl DirectConnection for TcpStream {}

impl DirectConnection for DuplexStream {}

/// Direct connections as they are found. An error means that there is none, or no longer one. The
/// last one counts until the stream migrates.
pub type DirectConnections = mpsc::UnboundedReceiver<io::Result<Box<dyn DirectConnection>>>;

/// Path of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamPath {
    /// The relay.
    Relay,
    /// The direct connection, or one that is still awaited.
    Direct,
}

/// Paths of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamPaths {
    /// Path of this side's bytes.
    pub outgoing: StreamPath,
    /// Path of the peer's bytes.
    pub incoming: StreamPath,
}

/// Number of bytes that went over the relay.
#[derive(Debug, Default)]
pub struct RelayedBytes {
    sent: AtomicU64,
    received: AtomicU64,
}

impl RelayedBytes {
    /// Returns the bytes that this side sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the peer sent.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Stream to a peer; see the module. It migrates while it is read, written or waited for; an unused
/// stream stays where it is.
///
/// On the relay a write is one frame. Written bytes may wait for a flush as long as nothing
/// arrives.
pub struct MigratingStream {
    switch: StreamSwitch,
    relay: Option<Box<dyn RelayConnection>>,
    /// Error of the relay's sink; reading may continue.
    write_error: Option<io::Error>,
    direct: Option<Box<dyn DirectConnection>>,
    direct_connections: Option<DirectConnections>,
    /// Message that waits for capacity in the relay.
    pending_message: Option<SwitchMessage>,
    /// Bytes from the relay that were not read yet. While there are any, the relay is not read.
    unread: Bytes,
    /// Both directions are direct and nothing is left of the relay: I/O goes straight to the
    /// socket.
    settled: bool,
    wakers: Arc<ReadWriteWakers>,
    paths: watch::Sender<StreamPaths>,
    relayed_bytes: Arc<RelayedBytes>,
}

impl fmt::Debug for MigratingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way")
            .field("halves", &self.switch)
            .field("settled", &self.settled)
            .finish_non_exhaustive()
    }
}

impl MigratingStream {
    /// Creates a stream that begins on the relay. `is_leader`: as in the session.
    pub fn on_relay(
        leads: bool,
        relay: Box<dyn RelayConnection>,
        direct_connections: DirectConnections,
    ) -> Self {
        Self::new(
            StreamSwitch::on_relay(leads),
            Some(relay),
            direct_connections,
        )
    }

    /// Creates a stream without a relay: everything waits for the first direct connection.
    pub fn without_relay(direct_connections: DirectConnections) -> Self {
        Self::new(StreamSwitch::without_relay(), None, direct_connections)
    }

    fn new(
        switch: StreamSwitch,
        relay: Option<Box<dyn RelayConnection>>,
        direct_connections: DirectConnections,
    ) -> Self {
        let path = if relay.is_some() {
            StreamPath::Relay
        } else {
            StreamPath::Direct
        };
        let (paths, _) = watch::channel(StreamPaths {
            outgoing: path,
            incoming: path,
        });
        let (unread, wakers) = (Bytes::new(), Arc::default());
        let direct_connections = Some(direct_connections);
        let (settled, relayed_bytes) = (false, Arc::default());
        Self {
            switch,
            relay,
            write_error: None,
            direct: None,
            direct_connections,
            pending_message: None,
            unread,
            settled,
            wakers,
            paths,
            relayed_bytes,
        }
    }

    /// Counts bytes that the relay got before the stream existed: the hello of a call.
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.switch.count_sent(bytes);
        self.relayed_bytes
            .sent
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the paths that carry the bytes, now and later. The channel closes with the stream.
    pub fn paths(&self) -> watch::Receiver<StreamPaths> {
        self.paths.subscribe()
    }

    /// Returns the counters of relayed bytes.
    pub fn relayed_bytes(&self) -> Arc<RelayedBytes> {
        Arc::clone(&self.relayed_bytes)
    }

    /// Makes all progress that is possible without reading or writing for the user.
    fn drive_io(&mut self) -> io::Result<()> {
        let waker = Waker::from(Arc::clone(&self.wakers));
        let cx = &mut Context::from_waker(&waker);
        self.take_direct_connections(cx)?;
        self.read_relay(cx)?;
        // Messages after the relay was read: a received one may be what allows this side to move.
        self.send_messages(cx);
        self.publish_paths();
        if self.flush_relay(cx)
            && self.switch.is_done_with_relay()
            && self.pending_message.is_none()
        {
            // The relay is closed only after the last message left: the peer needs it to find the
            // boundary.
            self.release_relay();
        }
        Ok(())
    }

    fn take_direct_connections(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(direct_connections) = &mut self.direct_connections {
            match direct_connections.poll_recv(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(_))) if self.switch.is_committed() => (),
                // This side has announced or used the present connection: another one would lose
                // bytes.
                Poll::Ready(Some(Ok(direct))) => {
                    self.direct = Some(direct);
                    self.switch.direct_found();
                }
                Poll::Ready(Some(Err(error))) if self.needs_direct() => return Err(error),
                // With a relay a failed search is no error: the relay carries the bytes.
                Poll::Ready(Some(Err(_))) => {
                    self.switch.direct_withdrawn();
                    self.direct = self.direct.take().filter(|_| self.switch.is_committed());
                }
                Poll::Ready(None) => self.direct_connections = None,
            }
        }
        // No sender is left: no connection can come any more.
        if self.needs_direct() {
            Err(no_direct_error())
        } else {
            Ok(())
        }
    }

    /// Returns whether only a direct connection allows progress.
    fn needs_direct(&self) -> bool {
        self.direct.is_none()
            && (self.switch.writes_direct()
                || self.switch.read_source() == ReadSource::AwaitingDirect)
    }

    /// Reads the relay until bytes for the user arrive, or it is no longer needed.
    fn read_relay(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.unread.is_empty() && !self.switch.is_done_with_relay() {
            let Some(relay) = &mut self.relay else {
                return Ok(());
            };
            // One unread frame at most: back-pressure reaches the peer through the relay.
            match relay.poll_next_unpin(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(frame)) => self.handle_frame(frame?)?,
                Poll::Ready(None) => {
                    self.relay = None;
                    return self.switch.relay_ended().map_err(switch_error);
                }
            }
        }
        Ok(())
    }

    fn handle_frame(&mut self, frame: StreamFrame) -> io::Result<()> {
        match frame {
            StreamFrame::Bytes(bytes) => {
                self.switch
                    .count_received(bytes.len())
                    .map_err(switch_error)?;
                self.relayed_bytes
                    .received
                    .fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.unread = bytes;
            }
            StreamFrame::Text(text) => {
                let message = SwitchMessage::decode(&text)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                self.switch.handle_message(message).map_err(switch_error)?;
            }
        }
        Ok(())
    }

    /// Sends pending messages. An error of the sink is kept for the writer.
    fn send_messages(&mut self, cx: &mut Context<'_>) {
        loop {
            self.pending_message = self
                .pending_message
                .take()
                .or_else(|| self.switch.next_message());
            let Some(relay) = &mut self.relay else {
                self.pending_message = None; // without a relay it has no recipient
                return;
            };
            let Some(message) = self.pending_message else {
                return;
            };
            match relay.poll_ready_unpin(cx) {
                Poll::Pending => return,
                Poll::Ready(ready) => {
                    let sent = ready
                        .and_then(|()| relay.start_send_unpin(StreamFrame::Text(message.encode())));
                    self.pending_message = None;
                    self.keep_write_error(sent);
                }
            }
        }
    }

    fn keep_write_error(&mut self, sent: io::Result<()>) {
        // The reader must not fail for it: the peer's bytes may all have arrived.
        if let Err(error) = sent {
            self.write_error.get_or_insert(error);
        }
    }

    fn flush_relay(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(relay) = &mut self.relay else {
            return true;
        };
        match relay.poll_flush_unpin(cx) {
            Poll::Pending => false,
            Poll::Ready(flushed) => {
                self.keep_write_error(flushed);
                true
            }
        }
    }

    /// Releases the relay, which closes in the background after it has delivered what it holds.
    fn release_relay(&mut self) {
        spawn_close(self.relay.take().map(close_relay));
        self.settled = self.direct.is_some() && self.unread.is_empty();
        if self.settled {
            self.direct_connections = None; // the search may stop
        }
    }

    /// Ends this side, and waits until the peer has all written bytes, as far as this can be known.
    ///
    /// A stream that is dropped instead finishes in the background, as long as the process lives.
    ///
    /// # Errors
    /// Fails when written bytes can no longer reach the peer.
    pub async fn close(mut self) -> io::Result<()> {
        let ended = self.shutdown().await;
        if let Some(relay) = self.relay.take() {
            close_relay(relay).await;
        }
        if let Some(close) = self
            .direct
            .take()
            .and_then(|mut direct| direct.linger_future())
        {
            close.await;
        }
        ended
    }

    fn publish_paths(&self) {
        let path = |direct| {
            if direct {
                StreamPath::Direct
            } else {
                StreamPath::Relay
            }
        };
        let inward = matches!(
            self.switch.read_source(),
            ReadSource::Direct | ReadSource::AwaitingDirect
        );
        let paths = StreamPaths {
            outgoing: path(self.switch.writes_direct()),
            incoming: path(inward),
        };
        // Watchers wake on changes only.
        self.paths
            .send_if_modified(|old| std::mem::replace(old, paths) != paths);
    }

    fn direct(&mut self) -> Option<Pin<&mut Box<dyn DirectConnection>>> {
        self.direct.as_mut().map(Pin::new)
    }
}

impl Drop for MigratingStream {
    fn drop(&mut self) {
        // A drop must not lose written bytes: the rest finishes in the background.
        spawn_close(
            self.direct
                .take()
                .and_then(|mut direct| direct.linger_future()),
        );
        spawn_close(self.relay.take().map(close_relay));
    }
}

/// Spawns the rest of a close. Without a runtime the process is about to end anyway.
fn spawn_close(close: Option<CloseFuture>) {
    if let (Some(close), Ok(runtime)) = (close, tokio::runtime::Handle::try_current()) {
        runtime.spawn(close);
    }
}

fn close_relay(mut relay: Box<dyn RelayConnection>) -> CloseFuture {
    Box::pin(async move {
        // The peer closes when it has everything; a reset before that could destroy bytes in
        // flight.
        let _ = relay.close().await; // the peer may be gone
        let closed = async { while let Some(Ok(_)) = relay.next().await {} };
        let _ = tokio::time::timeout(RELAY_CLOSE_TIMEOUT, closed).await;
    })
}

fn switch_error(error: super::SwitchError) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, error)
}

fn no_direct_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "no direct connection to the peer, and no relay: connect again",
    )
}
