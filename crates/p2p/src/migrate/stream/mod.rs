//! The stream itself: [`Halves`] with a relay and a direct connection.

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

use super::relay::{Piece, Relay};
use super::stream_switch::{Halves, Source};
use super::switch_message::Word;
use super::wakers::Wakers;

/// The other end may take so long to close the relay, too.
const CLOSING: Duration = Duration::from_secs(5);

/// What still has to run.
pub type Later = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Both directions of a connection, of any kind.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A direct connection to the peer.
pub trait Direct: Duplex {
    /// What has to run after the last read and write, so that the peer gets what was written, and learns of the end;
    /// `None`: the kernel sees to that.
    fn linger(&mut self) -> Option<Later> {
        None
    }
}

impl Direct for TcpStream {}

impl Direct for DuplexStream {}

/// Direct connections as they are found; an error when there is none to be had, or no more. The last one counts, until the way moves.
pub type Arrivals = mpsc::UnboundedReceiver<io::Result<Box<dyn Direct>>>;

/// What carries the bytes of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The relay.
    Relay,
    /// The direct connection, or what is to become one.
    Direct,
}

/// What carries the bytes of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Places {
    /// Those of this side.
    pub out: Place,
    /// Those of the peer.
    pub inward: Place,
}

/// Bytes that went over the relay.
#[derive(Debug, Default)]
pub struct Relayed {
    out: AtomicU64,
    inward: AtomicU64,
}

impl Relayed {
    /// Those of this side.
    pub fn out(&self) -> u64 {
        self.out.load(Ordering::Relaxed)
    }

    /// Those of the peer.
    pub fn inward(&self) -> u64 {
        self.inward.load(Ordering::Relaxed)
    }
}

/// See the module's text. A way moves when it is read or written, or waited for so; who does neither stays where he is.
///
/// Over the relay a write is one frame. As long as nothing arrives, what was written before a flush may wait.
pub struct Way {
    halves: Halves,
    relay: Option<Box<dyn Relay>>,
    /// What the relay's sink said; reading may still go on.
    mute: Option<io::Error>,
    direct: Option<Box<dyn Direct>>,
    arrivals: Option<Arrivals>,
    /// A word that waits for room in the relay.
    word: Option<Word>,
    /// What came over the relay and was not read yet. While there is any, the relay is not read.
    unread: Bytes,
    /// Both directions are direct, and nothing is left of the relay: the rest is plain.
    settled: bool,
    wakers: Arc<Wakers>,
    places: watch::Sender<Places>,
    relayed: Arc<Relayed>,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("halves", &self.halves).field("settled", &self.settled).finish_non_exhaustive()
    }
}

impl Way {
    /// A way that begins on the relay and moves to what arrives. `leads`: as in the session.
    pub fn on_relay(leads: bool, relay: Box<dyn Relay>, arrivals: Arrivals) -> Self {
        Self::new(Halves::on_relay(leads), Some(relay), arrivals)
    }

    /// A way without a relay: all waits for the first arrival.
    pub fn without_relay(arrivals: Arrivals) -> Self {
        Self::new(Halves::without_relay(), None, arrivals)
    }

    fn new(halves: Halves, relay: Option<Box<dyn Relay>>, arrivals: Arrivals) -> Self {
        let place = if relay.is_some() { Place::Relay } else { Place::Direct };
        let (places, _) = watch::channel(Places { out: place, inward: place });
        let (unread, wakers) = (Bytes::new(), Arc::default());
        let arrivals = Some(arrivals);
        let (settled, relayed) = (false, Arc::default());
        Self { halves, relay, mute: None, direct: None, arrivals, word: None, unread, settled, wakers, places, relayed }
    }

    /// So many bytes were given to the relay before the way was there: it goes on behind them.
    pub(crate) fn said(&mut self, bytes: usize) {
        self.halves.sent(bytes);
        self.relayed.out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What carries the bytes, now and later. It ends with the way.
    pub fn places(&self) -> watch::Receiver<Places> {
        self.places.subscribe()
    }

    /// How much of them the relay has carried, now and later.
    pub fn relayed(&self) -> Arc<Relayed> {
        Arc::clone(&self.relayed)
    }

    /// Does all that can be done now without reading or writing for the user.
    fn drive(&mut self) -> io::Result<()> {
        let waker = Waker::from(Arc::clone(&self.wakers));
        let cx = &mut Context::from_waker(&waker);
        self.take_arrivals(cx)?;
        self.listen(cx)?;
        self.speak(cx);
        self.note();
        if self.is_flushed(cx) && self.halves.is_off_relay() && self.word.is_none() {
            self.leave();
        }
        Ok(())
    }

    fn take_arrivals(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(arrivals) = &mut self.arrivals {
            match arrivals.poll_recv(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(_))) if self.halves.is_bound() => (),
                Poll::Ready(Some(Ok(direct))) => {
                    self.direct = Some(direct);
                    self.halves.arrived();
                }
                Poll::Ready(Some(Err(error))) if self.awaits() => return Err(error),
                Poll::Ready(Some(Err(_))) => {
                    self.halves.withdrawn();
                    self.direct = self.direct.take().filter(|_| self.halves.is_bound());
                }
                Poll::Ready(None) => self.arrivals = None,
            }
        }
        if self.awaits() { Err(no_direct()) } else { Ok(()) }
    }

    /// Nothing but a direct connection helps.
    fn awaits(&self) -> bool {
        self.direct.is_none() && (self.halves.writes_direct() || self.halves.source() == Source::Awaited)
    }

    /// Reads the relay until bytes are there for the user, or it is off.
    fn listen(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.unread.is_empty() && !self.halves.is_off_relay() {
            let Some(relay) = &mut self.relay else { return Ok(()) };
            match relay.poll_next_unpin(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(piece)) => self.hear(piece?)?,
                Poll::Ready(None) => {
                    self.relay = None;
                    return self.halves.relay_ended().map_err(broken);
                }
            }
        }
        Ok(())
    }

    fn hear(&mut self, piece: Piece) -> io::Result<()> {
        match piece {
            Piece::Bytes(bytes) => {
                self.halves.came(bytes.len()).map_err(broken)?;
                self.relayed.inward.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.unread = bytes;
            }
            Piece::Word(text) => {
                let word = Word::decode(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                self.halves.heard(word).map_err(broken)?;
            }
        }
        Ok(())
    }

    /// Says what is to be said. An error of the sink is kept for who writes.
    fn speak(&mut self, cx: &mut Context<'_>) {
        loop {
            self.word = self.word.take().or_else(|| self.halves.say());
            let Some(relay) = &mut self.relay else {
                self.word = None; // nobody hears it
                return;
            };
            let Some(word) = self.word else { return };
            match relay.poll_ready_unpin(cx) {
                Poll::Pending => return,
                Poll::Ready(ready) => {
                    let said = ready.and_then(|()| relay.start_send_unpin(Piece::Word(word.encode())));
                    self.word = None;
                    self.muted(said);
                }
            }
        }
    }

    fn muted(&mut self, said: io::Result<()>) {
        if let Err(error) = said {
            self.mute.get_or_insert(error);
        }
    }

    fn is_flushed(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(relay) = &mut self.relay else { return true };
        match relay.poll_flush_unpin(cx) {
            Poll::Pending => false,
            Poll::Ready(flushed) => {
                self.muted(flushed);
                true
            }
        }
    }

    /// The relay closes by itself, after what it still carries for the peer.
    fn leave(&mut self) {
        run_later(self.relay.take().map(leave_relay));
        self.settled = self.direct.is_some() && self.unread.is_empty();
        if self.settled {
            self.arrivals = None; // whoever looks for connections may stop
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
            leave_relay(relay).await;
        }
        if let Some(later) = self.direct.take().and_then(|mut direct| direct.linger()) {
            later.await;
        }
        ended
    }

    fn note(&self) {
        let place = |direct| if direct { Place::Direct } else { Place::Relay };
        let inward = matches!(self.halves.source(), Source::Direct | Source::Awaited);
        let places = Places { out: place(self.halves.writes_direct()), inward: place(inward) };
        self.places.send_if_modified(|old| std::mem::replace(old, places) != places);
    }

    fn direct(&mut self) -> Option<Pin<&mut Box<dyn Direct>>> {
        self.direct.as_mut().map(Pin::new)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        run_later(self.direct.take().and_then(|mut direct| direct.linger()));
        run_later(self.relay.take().map(leave_relay));
    }
}

/// Without a runtime the process is about to end anyway.
fn run_later(later: Option<Later>) {
    if let (Some(later), Ok(runtime)) = (later, tokio::runtime::Handle::try_current()) {
        runtime.spawn(later);
    }
}

fn leave_relay(mut relay: Box<dyn Relay>) -> Later {
    Box::pin(async move {
        let _ = relay.close().await; // an end is not asked for an answer
        let closed = async { while let Some(Ok(_)) = relay.next().await {} };
        let _ = tokio::time::timeout(CLOSING, closed).await;
    })
}

fn broken(torn: super::Torn) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, torn)
}

fn no_direct() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "there is no direct connection to the peer, and no relay: connect again",
    )
}
