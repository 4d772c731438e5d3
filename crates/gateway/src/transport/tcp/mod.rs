//! Connections to instances, kept between requests. One set a thread: no lock, and the task that drives a connection
//! wakes on the core that waits for it.
//!
//! What goes in clear and what goes in each version of TLS is kept apart: a request cannot take a connection that it did not ask
//! for. Connections with TLS belong to who opened them; those of a caller that was renewed, or to an instance whose certificate has ended,
//! take no new requests.

mod connection_set;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use nearpath_wire::client::{self, InstanceConnectError};
use nearpath_wire::identity::PeerIdentity;
use nearpath_wire::mtls::{
    AlpnProtocol, CallerStream, CertificateVerdict, TlsDialError, TlsVersion,
};
use nearpath_wire::quic::CallerConfig;
use tokio::net::TcpStream;

use crate::function::InstanceEndpoint;
use crate::request::RequestUpload;
use connection_set::{ConnectionSet, SharedStream};

/// What is between HTTP and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// Nothing.
    Plain,
    /// TLS of this version, with certificates on both sides.
    Tls(TlsVersion),
}

/// A connection to one instance, held for one request.
pub(crate) enum HttpConnection {
    /// Nobody else uses it.
    Http1 {
        sender: http1::SendRequest<RequestUpload>,
        tls: Option<Rc<TlsInfo>>,
    },
    /// Others may use it as well.
    Http2 {
        sender: http2::SendRequest<RequestUpload>,
        stream: SharedStream,
    },
}

/// What is known of a connection with TLS.
#[derive(Debug)]
pub(crate) struct TlsInfo {
    version: TlsVersion,
    /// Of which caller it is.
    caller_generation: u32,
    peer: PeerIdentity,
    /// What the instance says of the caller's certificate.
    verdict: CertificateVerdict,
    /// It has answered a request: the caller is accepted.
    is_accepted: Cell<bool>,
}

impl HttpConnection {
    /// Sends a request. An error that holds the request says that not a byte of it was sent. Not an `async fn`: the request
    /// goes to the connection's task at once and is not kept in the future.
    pub(crate) fn send_request(
        &mut self,
        request: Request<RequestUpload>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestUpload>>>> + use<>
    {
        match self {
            Self::Http1 { sender, .. } => Either::Left(sender.try_send_request(request)),
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

    /// Whether the instance may still turn the caller's certificate down.
    pub(crate) fn may_be_refused(&self) -> bool {
        self.tls_info().is_some_and(|tls| !tls.is_accepted.get())
    }

    /// A request was answered.
    pub(crate) fn mark_accepted(&self) {
        self.tls_info().inspect(|tls| tls.is_accepted.set(true));
    }

    /// Why the instance turned the caller's certificate down. Nothing that was sent on this line was looked at.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.tls_info()?.verdict.refusal()
    }
}

/// Every connection of one thread over TCP.
#[derive(Default)]
pub(crate) struct TcpPools {
    plain: ConnectionSet,
    tls13: ConnectionSet,
    tls12: ConnectionSet,
    /// Who called last over TLS, and the how manieth that is.
    caller: RefCell<Option<CallerConfig>>,
    caller_generation: Cell<u32>,
}

impl TcpPools {
    /// An idle connection to the instance, the one used last.
    pub(crate) fn take_connection(
        &self,
        endpoint: &InstanceEndpoint,
        tls_mode: TlsMode,
        h2: bool,
    ) -> Option<HttpConnection> {
        self.connections_for(tls_mode).take_connection(endpoint, h2)
    }

    /// A new connection; one with TLS as `caller`.
    ///
    /// # Errors
    /// When there is none within `limit`; nothing was sent.
    pub(crate) async fn open_connection(
        &self,
        endpoint: &Arc<InstanceEndpoint>,
        tls_mode: TlsMode,
        h2: bool,
        limit: Duration,
        caller: Option<CallerConfig>,
    ) -> Result<HttpConnection, InstanceConnectError> {
        let dial = TcpDial {
            pools: self,
            endpoint,
            tls_mode: tls_mode,
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
                    .share_connection(endpoint, || dial.dial_http2())
                    .await
            }
        }
    }

    /// Keeps a connection whose request is over, unless the instance was withdrawn or the caller renewed.
    pub(crate) fn put_connection(
        &self,
        endpoint: &Arc<InstanceEndpoint>,
        connection: HttpConnection,
        now: u32,
    ) {
        let HttpConnection::Http1 { sender, tls } = connection else {
            return;
        };
        let is_stale = tls
            .as_ref()
            .is_some_and(|tls| tls.caller_generation != self.caller_generation.get());
        if is_stale || sender.is_closed() || endpoint.request_count().is_none() {
            return;
        }
        let tls_mode = tls
            .as_ref()
            .map_or(TlsMode::Plain, |tls| TlsMode::Tls(tls.version));
        self.connections_for(tls_mode)
            .put_idle(endpoint, sender, tls, now);
    }

    /// Drops what is closed, idle since before `oldest`, or leads to an instance that is withdrawn or has an old certificate.
    pub(crate) fn sweep_idle(&self, oldest_tick: u32) {
        self.plain.sweep_idle(oldest_tick, SystemTime::UNIX_EPOCH);
        if self.caller_generation.get() > 0 {
            let now = SystemTime::now();
            [&self.tls13, &self.tls12]
                .into_iter()
                .for_each(|set| set.sweep_idle(oldest_tick, now));
        }
    }

    /// Calls go out as this one from now on: connections of another take no more of them.
    pub(crate) fn set_caller(&self, caller: &CallerConfig) {
        let before = self.caller.replace(Some(caller.clone()));
        if before.is_none_or(|before| !before.has_same_certificate(caller)) {
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

/// A connection that is being opened.
struct TcpDial<'a> {
    pools: &'a TcpPools,
    endpoint: &'a InstanceEndpoint,
    tls_mode: TlsMode,
    limit: Duration,
    caller: Option<CallerConfig>,
}

impl TcpDial<'_> {
    async fn dial_http1(
        &self,
    ) -> Result<(http1::SendRequest<RequestUpload>, Option<Rc<TlsInfo>>), InstanceConnectError>
    {
        let addr = self.endpoint.addr;
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
        let addr = self.endpoint.addr;
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
        let addr = self.endpoint.addr;
        let nameless = |who| TlsDialError::NoCertificate { addr, who };
        let caller = self
            .caller
            .as_ref()
            .ok_or_else(|| nameless("the gateway"))?;
        let name = self
            .endpoint
            .server_name()
            .ok_or_else(|| nameless("the instance, whose log says why,"))?;
        self.pools.set_caller(caller);
        let caller_generation = self.pools.caller_generation.get();
        let (stream, peer) = caller
            .mtls_connector()
            .dial_worker(addr, name, version, protocol, self.limit)
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
