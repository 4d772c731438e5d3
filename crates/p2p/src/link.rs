//! A connection to a peer: TLS between both identities, on a way that takes the nearest path there is.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::punch::session::SessionRole;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsStream;

use crate::driver::{
    DriverSettings, LocalPorts, PeerIntroduction, RunningSearch, SearchOutcome, SearchPlan,
};
use crate::handshake::{HandshakeRole, secure_stream};
use crate::migrate::{MigratingStream, RelayConnection, RelayedBytes, StreamPath, StreamPaths};

/// Encrypted bytes to and from the peer; the way below moves by itself while they flow.
#[derive(Debug)]
pub struct P2pLink {
    stream: TlsStream<MigratingStream>,
    status: LinkStatus,
}

/// What is known of a link, also from other tasks. Clones are of the same one.
#[derive(Debug, Clone)]
pub struct LinkStatus {
    /// What came of looking for a direct connection. It changes no more once that has ended.
    pub outcome: watch::Receiver<SearchOutcome>,
    /// What carries the bytes now.
    pub paths: watch::Receiver<StreamPaths>,
    /// How many of them the relay has carried.
    pub relayed_bytes: Arc<RelayedBytes>,
}

/// A direct connection is being looked for, or will be; the relay may be opened meanwhile. Dropped, the search ends.
#[derive(Debug)]
pub struct PendingLink {
    is_leader: bool,
    handshake_timeout: Duration,
    pair: Arc<PeerTlsConfig>,
    search: RunningSearch,
}

/// Begins to look for a direct connection to the peer of an introduction. `settings.agent.relay` says whether
/// [`PendingLink::over`] will be given a relay.
///
/// # Errors
/// When the process has too many files open.
pub fn start_link(
    search: impl Into<SearchPlan>,
    introduction: PeerIntroduction,
    settings: DriverSettings,
) -> io::Result<PendingLink> {
    let (is_leader, pair) = (
        introduction.session.role == SessionRole::Leader,
        introduction.pair.clone(),
    );
    let handshake_timeout = settings.handshake_timeout;
    let running_search = search.into().start(introduction, settings)?;
    Ok(PendingLink {
        is_leader,
        handshake_timeout,
        pair,
        search: running_search,
    })
}

impl PendingLink {
    /// What has come of the search, now and later. What is known already has changed, too.
    pub(crate) fn outcome(&self) -> watch::Receiver<SearchOutcome> {
        let mut outcome = self.search.outcome.clone();
        outcome.mark_changed();
        outcome
    }

    /// What begins the search, after so long if not before; none: it has begun.
    pub(crate) fn search_trigger(&self) -> Option<(Arc<Notify>, Duration)> {
        self.search.trigger.clone()
    }

    /// The connection. With a relay bytes flow before there is a direct connection; without one it is waited for. A hello that
    /// went with the call is on that relay.
    ///
    /// # Errors
    /// When the relay breaks, when there is none and no direct way either, and when the peer is not who was meant.
    pub async fn connect_over(
        self,
        mut side: HandshakeRole,
        relay: Option<Box<dyn RelayConnection>>,
    ) -> io::Result<P2pLink> {
        let RunningSearch {
            connections: arrivals,
            outcome: verdict,
            trigger: begin,
        } = self.search;
        let stream = match relay {
            Some(relay) => {
                let mut stream = MigratingStream::on_relay(self.is_leader, relay, arrivals);
                side.mark_hello_sent(&mut stream);
                stream
            }
            None => {
                begin.into_iter().for_each(|(begin, _)| begin.notify_one()); // nothing else carries a byte
                MigratingStream::without_relay(arrivals)
            }
        };
        let status = LinkStatus {
            outcome: verdict,
            paths: stream.paths(),
            relayed_bytes: stream.relayed_bytes(),
        };
        let stream = tokio::time::timeout(
            self.handshake_timeout,
            secure_stream(stream, side, &self.pair),
        )
        .await??;
        Ok(P2pLink { stream, status })
    }
}

/// Connects to the peer of an introduction: [`begin`], then [`PendingLink::over`].
///
/// # Errors
/// See there.
pub async fn connect_link(
    ports: LocalPorts,
    introduction: PeerIntroduction,
    side: HandshakeRole,
    relay: Option<Box<dyn RelayConnection>>,
    mut settings: DriverSettings,
) -> io::Result<P2pLink> {
    settings.agent.allow_relay = relay.is_some();
    start_link(ports, introduction, settings)?
        .connect_over(side, relay)
        .await
}

impl LinkStatus {
    /// The path's name, by what this side's bytes go over now: `punch` or `relay`.
    pub fn path_name(&self) -> &'static str {
        match self.paths.borrow().outgoing {
            StreamPath::Direct => "punch",
            StreamPath::Relay => "relay",
        }
    }
}

impl P2pLink {
    /// What is known of it.
    pub fn status(&self) -> &LinkStatus {
        &self.status
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

impl AsyncRead for P2pLink {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for P2pLink {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
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
