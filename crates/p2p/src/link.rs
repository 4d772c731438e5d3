//! Connection to a peer: TLS between both identities, on a stream that takes the shortest available
//! path.

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

/// Encrypted bytes to and from the peer. The stream below migrates by itself while they flow.
#[derive(Debug)]
pub struct P2pLink {
    stream: TlsStream<MigratingStream>,
    status: LinkStatus,
}

/// Status of a link, readable from other tasks. Clones refer to the same link.
#[derive(Debug, Clone)]
pub struct LinkStatus {
    /// Outcome of the search for a direct connection. It is final once the search has ended.
    pub outcome: watch::Receiver<SearchOutcome>,
    /// Path that carries the bytes now, per direction.
    pub paths: watch::Receiver<StreamPaths>,
    /// Number of bytes that the relay has carried.
    pub relayed_bytes: Arc<RelayedBytes>,
}

/// Link whose search runs or waits to run; the relay may be opened meanwhile. Dropping it ends the
/// search.
#[derive(Debug)]
pub struct PendingLink {
    is_leader: bool,
    handshake_timeout: Duration,
    pair: Arc<PeerTlsConfig>,
    search: RunningSearch,
}

/// Starts the search for a direct connection to the peer of an introduction.
///
/// `settings.agent.allow_relay` says whether [`PendingLink::connect_over`] will be given a relay.
///
/// # Errors
/// Fails when the process has too many files open.
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
    /// Returns the outcome of the search, now and later. The present value counts as changed, too.
    pub(crate) fn outcome(&self) -> watch::Receiver<SearchOutcome> {
        let mut outcome = self.search.outcome.clone();
        // A receiver that is cloned late would otherwise miss an outcome that is already there.
        outcome.mark_changed();
        outcome
    }

    /// Returns the trigger of the search, and the time after which it starts anyway. `None`: the
    /// search has started.
    pub(crate) fn search_trigger(&self) -> Option<(Arc<Notify>, Duration)> {
        self.search.trigger.clone()
    }

    /// Completes the connection.
    ///
    /// With a relay, bytes flow before there is a direct connection; without one, the direct
    /// connection is awaited. A hello that travelled with the call is already on that relay.
    ///
    /// # Errors
    /// Fails when the relay breaks, when there is neither a relay nor a direct connection, and when
    /// the peer has another identity.
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
                // Without a relay nothing else carries a byte, so an on-demand search starts now.
                begin.into_iter().for_each(|(begin, _)| begin.notify_one());
                MigratingStream::without_relay(arrivals)
            }
        };
        let status = LinkStatus {
            outcome: verdict,
            paths: stream.paths(),
            relayed_bytes: stream.relayed_bytes(),
        };
        // One timeout covers the search (without a relay) and both TLS flights.
        let stream = tokio::time::timeout(
            self.handshake_timeout,
            secure_stream(stream, side, &self.pair),
        )
        .await??;
        Ok(P2pLink { stream, status })
    }
}

/// Connects to the peer of an introduction: [`start_link`], then [`PendingLink::connect_over`].
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
    /// Returns the path's name, by what carries this side's bytes now: `punch` or `relay`.
    pub fn path_name(&self) -> &'static str {
        match self.paths.borrow().outgoing {
            StreamPath::Direct => "punch",
            StreamPath::Relay => "relay",
        }
    }
}

impl P2pLink {
    /// Returns the status of the link.
    pub fn status(&self) -> &LinkStatus {
        &self.status
    }

    /// Ends this side, and waits until the peer has all written bytes, as far as this can be known.
    ///
    /// # Errors
    /// Fails when written bytes can no longer reach the peer.
    pub async fn close(mut self) -> io::Result<()> {
        // `close_notify` first: TLS does not trust the end of the stream below it (RFC 8446 section
        // 6.1).
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
