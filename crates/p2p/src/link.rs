//! A connection to a peer: TLS between both identities, on a way that takes the nearest path there is.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::punch::session::Role;
use nearpath_wire::pair::Pair;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsStream;

use crate::driver::{Introduction, Ports, Search, Searching, Settings, Verdict};
use crate::handshake::{Side, secure};
use crate::migrate::{Place, Places, Relay, Relayed, Way};

/// Encrypted bytes to and from the peer; the way below moves by itself while they flow.
#[derive(Debug)]
pub struct Link {
    stream: TlsStream<Way>,
    known: Known,
}

/// What is known of a link, also from other tasks. Clones are of the same one.
#[derive(Debug, Clone)]
pub struct Known {
    /// What came of looking for a direct connection. It changes no more once that has ended.
    pub verdict: watch::Receiver<Verdict>,
    /// What carries the bytes now.
    pub places: watch::Receiver<Places>,
    /// How many of them the relay has carried.
    pub relayed: Arc<Relayed>,
}

/// A direct connection is being looked for, or will be; the relay may be opened meanwhile. Dropped, the search ends.
#[derive(Debug)]
pub struct Begun {
    leads: bool,
    patience: Duration,
    pair: Arc<Pair>,
    searching: Searching,
}

/// Begins to look for a direct connection to the peer of an introduction. `settings.agent.relay` says whether
/// [`Begun::over`] will be given a relay.
///
/// # Errors
/// When the process has too many files open.
pub fn begin(search: impl Into<Search>, introduction: Introduction, settings: Settings) -> io::Result<Begun> {
    let (leads, pair) = (introduction.session.role == Role::Leader, introduction.pair.clone());
    let patience = settings.handshake;
    let searching = search.into().start(introduction, settings)?;
    Ok(Begun { leads, patience, pair, searching })
}

impl Begun {
    /// What has come of the search, now and later. What is known already has changed, too.
    pub(crate) fn verdict(&self) -> watch::Receiver<Verdict> {
        let mut verdict = self.searching.verdict.clone();
        verdict.mark_changed();
        verdict
    }

    /// What begins the search, after so long if not before; none: it has begun.
    pub(crate) fn beginning(&self) -> Option<(Arc<Notify>, Duration)> {
        self.searching.begin.clone()
    }

    /// The connection. With a relay bytes flow before there is a direct connection; without one it is waited for. A hello that
    /// went with the call is on that relay.
    ///
    /// # Errors
    /// When the relay breaks, when there is none and no direct way either, and when the peer is not who was meant.
    pub async fn over(self, mut side: Side, relay: Option<Box<dyn Relay>>) -> io::Result<Link> {
        let Searching { arrivals, verdict, begin } = self.searching;
        let way = match relay {
            Some(relay) => {
                let mut way = Way::on_relay(self.leads, relay, arrivals);
                side.begin(&mut way);
                way
            }
            None => {
                begin.into_iter().for_each(|(begin, _)| begin.notify_one()); // nothing else carries a byte
                Way::without_relay(arrivals)
            }
        };
        let known = Known { verdict, places: way.places(), relayed: way.relayed() };
        let stream = tokio::time::timeout(self.patience, secure(way, side, &self.pair)).await??;
        Ok(Link { stream, known })
    }
}

/// Connects to the peer of an introduction: [`begin`], then [`Begun::over`].
///
/// # Errors
/// See there.
pub async fn connect(
    ports: Ports,
    introduction: Introduction,
    side: Side,
    relay: Option<Box<dyn Relay>>,
    mut settings: Settings,
) -> io::Result<Link> {
    settings.agent.relay = relay.is_some();
    begin(ports, introduction, settings)?.over(side, relay).await
}

impl Known {
    /// The path's name, by what this side's bytes go over now: `punch` or `relay`.
    pub fn path(&self) -> &'static str {
        match self.places.borrow().out {
            Place::Direct => "punch",
            Place::Relay => "relay",
        }
    }
}

impl Link {
    /// What is known of it.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Ends this side, and waits until the peer has all that was written, as far as that can be known.
    ///
    /// # Errors
    /// When what was written cannot reach the peer any more.
    pub async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        match self.stream {
            TlsStream::Client(stream) => stream.into_inner().0.close().await,
            TlsStream::Server(stream) => stream.into_inner().0.close().await,
        }
    }
}

impl AsyncRead for Link {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Link {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
