//! TCP connections to instances, kept between requests. One set per thread: no lock, and the task
//! of a connection wakes on the core that waits for it.
//!
//! Plain text and each version of TLS have separate connections: a request never uses a kind that
//! it did not ask for. TLS connections belong to the certificate that opened them. Those of a
//! renewed certificate, or to an instance whose certificate has expired, take no new requests.

mod connection_set;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use nearpath_wire::client::{self, InstanceConnectError};
use nearpath_wire::hop::headers::announce_body;
use nearpath_wire::identity::PeerIdentity;
use nearpath_wire::mtls::{
    AlpnProtocol, CallerStream, CertificateVerdict, TlsDialError, TlsVersion,
};
use nearpath_wire::quic::CallerConfig;
use tokio::net::{TcpSocket, TcpStream};

use crate::function::DialTarget;
use crate::request::RequestUpload;
use connection_set::{ConnectionSet, SharedStream};

/// Encryption between HTTP and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// Plain text.
    Plain,
    /// Mutual TLS of this version.
    Tls(TlsVersion),
}

/// Connection to one instance, held for one request.
pub(crate) enum HttpConnection {
    /// Exclusive to the request.
    Http1 {
        sender: http1::SendRequest<RequestUpload>,
        tls: Option<Rc<TlsInfo>>,
    },
    /// Shared with other requests.
    Http2 {
        sender: http2::SendRequest<RequestUpload>,
        stream: SharedStream,
    },
}

/// State of a TLS connection.
#[derive(Debug)]
pub(crate) struct TlsInfo {
    version: TlsVersion,
    /// Generation of the caller's certificate.
    caller_generation: u32,
    peer: PeerIdentity,
    /// The instance's decision on the caller's certificate.
    verdict: CertificateVerdict,
    /// The instance has answered a request, so it accepts the caller.
    is_accepted: Cell<bool>,
}

impl HttpConnection {
    /// Sends a request. An error with the request in it means that nothing was sent. Not an
    /// `async fn`: the request moves to the task of the connection at once and does not stay in
    /// the future.
    pub(crate) fn send_request(
        &mut self,
        mut request: Request<RequestUpload>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestUpload>>>> + use<>
    {
        match self {
            Self::Http1 { sender, .. } => {
                announce_body(&mut request);
                Either::Left(sender.try_send_request(request))
            }
            Self::Http2 { sender, .. } => Either::Right(sender.try_send_request(request)),
        }
    }
}

impl HttpConnection {
    fn tls_info(&self) -> Option<&TlsInfo> {
        match self {
            Self::Http1 { tls, .. } => tls.as_deref(),
            Self::Http2 { stream, .. } => stream.tls_info(),
        }
    }

    /// Returns whether the instance may still reject the caller's certificate.
    pub(crate) fn may_be_refused(&self) -> bool {
        // In TLS 1.3 the client sends before the server has checked its certificate (RFC 8446
        // section 2).
        self.tls_info().is_some_and(|tls| !tls.is_accepted.get())
    }

    /// Notes an answered request, which proves acceptance.
    pub(crate) fn mark_accepted(&self) {
        self.tls_info().inspect(|tls| tls.is_accepted.set(true));
    }

    /// Returns why the instance rejected the caller's certificate. It has read no request on this
    /// connection.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.tls_info()?.verdict.refusal()
    }
}

/// Opens a non-blocking TCP socket, for IPv6 if the flag is set.
pub(crate) type SocketOpener = Rc<dyn Fn(bool) -> io::Result<OwnedFd>>;

/// TCP connections of one thread.
#[derive(Default)]
pub(crate) struct TcpPools {
    plain: ConnectionSet,
    tls13: ConnectionSet,
    tls12: ConnectionSet,
    /// Certificate of the last TLS connection, and its generation below.
    caller: RefCell<Option<CallerConfig>>,
    caller_generation: Cell<u32>,
    /// Opens sockets; `None`: in the thread's network namespace.
    opener: Option<SocketOpener>,
}

impl TcpPools {
    /// Opens sockets for TLS with `opener`.
    #[must_use]
    pub(super) fn with_sockets(self, opener: SocketOpener) -> Self {
        Self {
            opener: Some(opener),
            ..self
        }
    }

    async fn connect_tcp(&self, addr: SocketAddr) -> io::Result<TcpStream> {
        let stream = match &self.opener {
            None => TcpStream::connect(addr).await?,
            Some(open) => {
                let socket = open(addr.is_ipv6())?;
                let socket = TcpSocket::from_std_stream(socket.into());
                socket.connect(addr).await?
            }
        };
        stream.set_nodelay(true)?; // heads and small bodies would wait for acknowledgements
        Ok(stream)
    }

    /// Takes an idle connection to the instance, the one used last.
    pub(crate) fn take_connection(
        &self,
        target: &DialTarget,
        tls_mode: TlsMode,
        h2: bool,
    ) -> Option<HttpConnection> {
        self.connections_for(tls_mode).take_connection(target, h2)
    }

    /// Opens a connection; with TLS as `caller`.
    ///
    /// # Errors
    /// If no connection is open within `limit`; nothing was sent.
    pub(crate) async fn open_connection(
        &self,
        target: &Arc<DialTarget>,
        tls_mode: TlsMode,
        h2: bool,
        limit: Duration,
        caller: Option<CallerConfig>,
    ) -> Result<HttpConnection, InstanceConnectError> {
        let dial = TcpDial {
            pools: self,
            target,
            tls_mode,
            limit,
            caller,
        };
        match h2 {
            false => {
                let (sender, tls) = dial.dial_http1().await?;
                Ok(HttpConnection::Http1 { sender, tls })
            }
            true => {
                self.connections_for(tls_mode)
                    .share_connection(target, || dial.dial_http2())
                    .await
            }
        }
    }

    /// Keeps a connection after its request, unless the instance was withdrawn or the certificate
    /// renewed.
    pub(crate) fn put_connection(
        &self,
        target: &Arc<DialTarget>,
        connection: HttpConnection,
        now: u32,
    ) {
        // A shared connection stays in its set while it is used; only the count falls.
        let HttpConnection::Http1 { sender, tls } = connection else {
            return;
        };
        let is_stale = tls
            .as_ref()
            .is_some_and(|tls| tls.caller_generation != self.caller_generation.get());
        if is_stale || sender.is_closed() || target.is_withdrawn() {
            return;
        }
        let tls_mode = tls
            .as_ref()
            .map_or(TlsMode::Plain, |tls| TlsMode::Tls(tls.version));
        self.connections_for(tls_mode)
            .put_idle(target, sender, tls, now);
    }

    /// Removes connections that are closed, idle since before `oldest_tick`, or lead to an
    /// instance that is withdrawn or has an expired certificate.
    pub(crate) fn sweep_idle(&self, oldest_tick: u32) {
        // Plain connections have no certificate, so the time does not matter, and reading the
        // clock is spared.
        self.plain.sweep_idle(oldest_tick, SystemTime::UNIX_EPOCH);
        if self.caller_generation.get() > 0 {
            let now = SystemTime::now();
            [&self.tls13, &self.tls12]
                .into_iter()
                .for_each(|set| set.sweep_idle(oldest_tick, now));
        }
    }

    /// Sets the certificate of the caller. Connections of another one take no new calls.
    pub(crate) fn set_caller(&self, caller: &CallerConfig) {
        let before = self.caller.replace(Some(caller.clone()));
        if before.is_none_or(|before| !before.has_same_certificate(caller)) {
            // Connections in use are not in the sets; the number marks them as stale when they
            // come back.
            self.caller_generation.set(self.caller_generation.get() + 1);
            [&self.tls13, &self.tls12]
                .into_iter()
                .for_each(ConnectionSet::drop_all);
        }
    }

    fn connections_for(&self, tls_mode: TlsMode) -> &ConnectionSet {
        match tls_mode {
            TlsMode::Plain => &self.plain,
            TlsMode::Tls(TlsVersion::Tls13) => &self.tls13,
            TlsMode::Tls(TlsVersion::Tls12) => &self.tls12,
        }
    }
}

/// Parameters of a connection to open.
struct TcpDial<'a> {
    pools: &'a TcpPools,
    target: &'a DialTarget,
    tls_mode: TlsMode,
    limit: Duration,
    caller: Option<CallerConfig>,
}

impl TcpDial<'_> {
    async fn dial_http1(
        &self,
    ) -> Result<(http1::SendRequest<RequestUpload>, Option<Rc<TlsInfo>>), InstanceConnectError>
    {
        let addr = self.target.addr;
        match self.tls_mode {
            TlsMode::Plain => client::connect_http1(addr, self.limit)
                .await
                .map(|sender| (sender, None)),
            TlsMode::Tls(version) => {
                let (stream, tls) = self.dial_tls(version, AlpnProtocol::Http1).await?;
                client::handshake_http1(stream, addr)
                    .await
                    .map(|sender| (sender, Some(tls)))
            }
        }
    }

    async fn dial_http2(
        &self,
    ) -> Result<(http2::SendRequest<RequestUpload>, Option<Rc<TlsInfo>>), InstanceConnectError>
    {
        let addr = self.target.addr;
        match self.tls_mode {
            TlsMode::Plain => client::connect_http2(addr, self.limit)
                .await
                .map(|sender| (sender, None)),
            TlsMode::Tls(version) => {
                let (stream, tls) = self.dial_tls(version, AlpnProtocol::Http2).await?;
                client::handshake_http2(stream, addr)
                    .await
                    .map(|sender| (sender, Some(tls)))
            }
        }
    }

    async fn dial_tls(
        &self,
        version: TlsVersion,
        protocol: AlpnProtocol,
    ) -> Result<(CallerStream<TcpStream>, Rc<TlsInfo>), InstanceConnectError> {
        let addr = self.target.addr;
        let nameless = |who| TlsDialError::NoCertificate { addr, who };
        let caller = self
            .caller
            .as_ref()
            .ok_or_else(|| nameless("the gateway"))?;
        let name = self
            .target
            .server_name()
            .ok_or_else(|| nameless("the instance, whose log says why,"))?;
        // Before the generation is read: a renewal that arrives with this dial must not keep old
        // connections.
        self.pools.set_caller(caller);
        let caller_generation = self.pools.caller_generation.get();
        let (stream, peer) = caller
            .mtls_connector()
            .dial_over(
                self.pools.connect_tcp(addr),
                (addr, name),
                (version, protocol),
                self.limit,
            )
            .await?;
        let (verdict, is_accepted) = (stream.verdict().clone(), Cell::new(false));
        Ok((
            stream,
            Rc::new(TlsInfo {
                version,
                caller_generation,
                peer,
                verdict,
                is_accepted,
            }),
        ))
    }
}
