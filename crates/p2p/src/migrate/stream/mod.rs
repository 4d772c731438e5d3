//! The stream itself: [`StreamSwitch`] with a relay and a direct connection.

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

/// The other end may take so long to close the relay, too.
const RELAY_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What still has to run.
pub type CloseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Both directions of a connection, of any kind.
pub trait DuplexIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> DuplexIo for S {}

/// A direct connection to the peer.
pub trait DirectConnection: DuplexIo {
    /// What has to run after the last read and write, so that the peer gets what was written, and learns of the end;
    /// `NoConnection`: the kernel sees to that.
    fn linger_future(&mut self) -> Option<CloseFuture> {
        None
    }
}

impl DirectConnection for TcpStream {}

impl DirectConnection for DuplexStream {}

/// Direct connections as they are found; an error when there is none to be had, or no more. The last one counts, until the way moves.
pub type DirectConnections = mpsc::UnboundedReceiver<io::Result<Box<dyn DirectConnection>>>;

/// What carries the bytes of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamPath {
    /// The relay.
    Relay,
    /// The direct connection, or what is to become one.
    Direct,
}

/// What carries the bytes of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamPaths {
    /// Those of this side.
    pub outgoing: StreamPath,
    /// Those of the peer.
    pub incoming: StreamPath,
}

/// Bytes that went over the relay.
#[derive(Debug, Default)]
pub struct RelayedBytes {
    sent: AtomicU64,
    received: AtomicU64,
}

impl RelayedBytes {
    /// Those of this side.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Those of the peer.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// See the module's text. A way moves when it is read or written, or waited for so; who does neither stays where he is.
///
/// Over the relay a write is one frame. As long as nothing arrives, what was written before a flush may wait.
pub struct MigratingStream {
    switch: StreamSwitch,
    relay: Option<Box<dyn RelayConnection>>,
    /// What the relay's sink said; reading may still go on.
    write_error: Option<io::Error>,
    direct: Option<Box<dyn DirectConnection>>,
    direct_connections: Option<DirectConnections>,
    /// A word that waits for room in the relay.
    pending_message: Option<SwitchMessage>,
    /// What came over the relay and was not read yet. While there is any, the relay is not read.
    unread: Bytes,
    /// Both directions are direct, and nothing is left of the relay: the rest is plain.
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
    /// A way that begins on the relay and moves to what arrives. `leads`: as in the session.
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

    /// A way without a relay: all waits for the first arrival.
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
            switch: switch,
            relay,
            write_error: None,
            direct: None,
            direct_connections: direct_connections,
            pending_message: None,
            unread,
            settled,
            wakers,
            paths: paths,
            relayed_bytes,
        }
    }

    /// So many bytes were given to the relay before the way was there: it goes on behind them.
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.switch.count_sent(bytes);
        self.relayed_bytes
            .sent
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What carries the bytes, now and later. It ends with the way.
    pub fn paths(&self) -> watch::Receiver<StreamPaths> {
        self.paths.subscribe()
    }

    /// How much of them the relay has carried, now and later.
    pub fn relayed_bytes(&self) -> Arc<RelayedBytes> {
        Arc::clone(&self.relayed_bytes)
    }

    /// Does all that can be done now without reading or writing for the user.
    fn drive_io(&mut self) -> io::Result<()> {
        let waker = Waker::from(Arc::clone(&self.wakers));
        let cx = &mut Context::from_waker(&waker);
        self.take_direct_connections(cx)?;
        self.read_relay(cx)?;
        self.send_messages(cx);
        self.publish_paths();
        if self.flush_relay(cx)
            && self.switch.is_done_with_relay()
            && self.pending_message.is_none()
        {
            self.release_relay();
        }
        Ok(())
    }

    fn take_direct_connections(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(direct_connections) = &mut self.direct_connections {
            match direct_connections.poll_recv(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(_))) if self.switch.is_committed() => (),
                Poll::Ready(Some(Ok(direct))) => {
                    self.direct = Some(direct);
                    self.switch.direct_found();
                }
                Poll::Ready(Some(Err(error))) if self.needs_direct() => return Err(error),
                Poll::Ready(Some(Err(_))) => {
                    self.switch.direct_withdrawn();
                    self.direct = self.direct.take().filter(|_| self.switch.is_committed());
                }
                Poll::Ready(None) => self.direct_connections = None,
            }
        }
        if self.needs_direct() {
            Err(no_direct_error())
        } else {
            Ok(())
        }
    }

    /// Nothing but a direct connection helps.
    fn needs_direct(&self) -> bool {
        self.direct.is_none()
            && (self.switch.writes_direct()
                || self.switch.read_source() == ReadSource::AwaitingDirect)
    }

    /// Reads the relay until bytes are there for the user, or it is off.
    fn read_relay(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.unread.is_empty() && !self.switch.is_done_with_relay() {
            let Some(relay) = &mut self.relay else {
                return Ok(());
            };
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

    /// Says what is to be said. An error of the sink is kept for who writes.
    fn send_messages(&mut self, cx: &mut Context<'_>) {
        loop {
            self.pending_message = self
                .pending_message
                .take()
                .or_else(|| self.switch.next_message());
            let Some(relay) = &mut self.relay else {
                self.pending_message = None; // nobody hears it
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

    /// The relay closes by itself, after what it still carries for the peer.
    fn release_relay(&mut self) {
        spawn_close(self.relay.take().map(close_relay));
        self.settled = self.direct.is_some() && self.unread.is_empty();
        if self.settled {
            self.direct_connections = None; // whoever looks for connections may stop
        }
    }

    /// Ends this side, and waits until the peer has all that was written, as far as that can be known. What is dropped
    /// instead goes on by itself, as long as the process does.
    ///
    /// # Errors
    /// When what was written cannot reach the peer any more.
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
        self.paths
            .send_if_modified(|old| std::mem::replace(old, paths) != paths);
    }

    fn direct(&mut self) -> Option<Pin<&mut Box<dyn DirectConnection>>> {
        self.direct.as_mut().map(Pin::new)
    }
}

impl Drop for MigratingStream {
    fn drop(&mut self) {
        spawn_close(
            self.direct
                .take()
                .and_then(|mut direct| direct.linger_future()),
        );
        spawn_close(self.relay.take().map(close_relay));
    }
}

/// Without a runtime the process is about to end anyway.
fn spawn_close(close: Option<CloseFuture>) {
    if let (Some(close), Ok(runtime)) = (close, tokio::runtime::Handle::try_current()) {
        runtime.spawn(close);
    }
}

fn close_relay(mut relay: Box<dyn RelayConnection>) -> CloseFuture {
    Box::pin(async move {
        let _ = relay.close().await; // an end is not asked for an answer
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
        "there is no direct connection to the peer, and no relay: connect again",
    )
}
