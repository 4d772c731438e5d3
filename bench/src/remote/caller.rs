//! Connections of one thread, for every transport.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use nearpath_wire::mtls::{AlpnProtocol, TlsVersion};
use nearpath_wire::quic::{CallerConnection, Dialer, EarlyData, udp};
use quinn::{ClientConfig, Endpoint, EndpointConfig, TokioRuntime};
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::identities::CallIdentity;
use super::{BenchError, RemoteTransport};
use crate::tally::RequestFailure;

/// Time limit for every step of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Addresses and name of a worker.
#[derive(Debug, Clone)]
pub(crate) struct CalleeAddress {
    /// Address for TCP, without TLS or with certificates on both sides, and for QUIC over UDP.
    pub(crate) worker: SocketAddr,
    /// Address for TLS with the worker's certificate alone.
    pub(crate) server: SocketAddr,
    pub(crate) name: String,
}

/// Call with known sizes of body and response.
#[derive(Debug, Clone)]
pub(crate) struct SizedCall {
    pub(crate) path: String,
    /// Body; with a body the call is a POST.
    pub(crate) body: Bytes,
    /// Bytes of the response.
    pub(crate) response: usize,
}

/// Caller of remote functions. Must live inside a `LocalSet`.
pub(crate) struct RemoteCaller {
    identity: CallIdentity,
    early: Dialer,
    full: Dialer,
    /// Set after a handshake that leaves a session for the next one.
    has_session: Cell<bool>,
}

/// An open connection.
pub(crate) enum CallConnection {
    Http(SendRequest<Full<Bytes>>),
    Quic(CallerConnection, EarlyData),
}

impl CalleeAddress {
    /// Returns the same worker at another address of its machine.
    pub(crate) fn at_address(&self, addr: IpAddr) -> Self {
        let at = |old: SocketAddr| SocketAddr::new(addr, old.port());
        Self {
            worker: at(self.worker),
            server: at(self.server),
            name: self.name.clone(),
        }
    }
}

impl RemoteCaller {
    /// Creates a caller. Its sockets belong to the current thread's namespace.
    pub(crate) fn new(identity: CallIdentity) -> Result<Self, BenchError> {
        let dialer = |config: &ClientConfig| -> Result<Dialer, BenchError> {
            // A socket for each configuration: sessions with and without early data must not mix.
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            udp::request_buffers(&socket);
            let endpoint = Endpoint::new(
                EndpointConfig::default(),
                None,
                socket,
                Arc::new(TokioRuntime),
            )?;
            Ok(Dialer::new(
                endpoint,
                config.clone(),
                identity.trust.clone(),
            ))
        };
        let (early, full) = (dialer(&identity.early.0)?, dialer(&identity.full.0)?);
        Ok(Self {
            identity,
            early,
            full,
            has_session: Cell::new(false),
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// [`RequestFailure::Connect`] also if a call needs the first flight and there is no session
    /// for it.
    pub(crate) async fn open_connection(
        &self,
        transport: RemoteTransport,
        callee: &CalleeAddress,
    ) -> Result<CallConnection, RequestFailure> {
        let opening = async {
            match transport {
                RemoteTransport::Tcp => {
                    CallConnection::http_connection(connect_tcp(callee.worker).await?).await
                }
                RemoteTransport::Tls12Server | RemoteTransport::Tls13Server => {
                    self.connect_unnamed(transport, callee).await
                }
                RemoteTransport::Tls12 | RemoteTransport::Tls13 | RemoteTransport::Tls13Resumed => {
                    self.connect_tls(transport, callee).await
                }
                RemoteTransport::Quic
                | RemoteTransport::QuicResumed
                | RemoteTransport::QuicEarly
                | RemoteTransport::QuicReady => self.connect_quic(transport, callee).await,
            }
        };
        tokio::time::timeout(CALL_TIMEOUT, opening)
            .await
            .unwrap_or(Err(RequestFailure::Timeout))
    }

    async fn connect_unnamed(
        &self,
        transport: RemoteTransport,
        callee: &CalleeAddress,
    ) -> Result<CallConnection, RequestFailure> {
        let config = self
            .identity
            .nameless
            .for_transport(transport)
            .ok_or(RequestFailure::Connect)?;
        let name =
            ServerName::try_from(callee.name.clone()).map_err(|_| RequestFailure::Connect)?;
        let stream = TlsConnector::from(Arc::clone(config))
            .connect(name, connect_tcp(callee.server).await?)
            .await;
        CallConnection::http_connection(stream.map_err(|_| RequestFailure::Connect)?).await
    }

    async fn connect_tls(
        &self,
        transport: RemoteTransport,
        callee: &CalleeAddress,
    ) -> Result<CallConnection, RequestFailure> {
        let CallIdentity {
            tls_resumed,
            tls_full: (full, sessions),
            ..
        } = &self.identity;
        let (connector, version) = match transport {
            RemoteTransport::Tls13Resumed => (tls_resumed, TlsVersion::Tls13),
            RemoteTransport::Tls12 => (full, TlsVersion::Tls12),
            _ => (full, TlsVersion::Tls13),
        };
        // A full handshake is what these variants measure: the last session must not shorten it.
        sessions.forget_worker(&callee.name);
        let stream = connector
            .dial_worker(
                callee.worker,
                &callee.name,
                version,
                AlpnProtocol::Http1,
                CALL_TIMEOUT,
            )
            .await;
        let (stream, _) = stream.map_err(|_| RequestFailure::Connect)?;
        let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        // The first handshake cannot resume anything; only later ones must.
        if transport == RemoteTransport::Tls13Resumed && !resumed && self.has_session.replace(true)
        {
            return Err(RequestFailure::Connect); // what is measured would be something else
        }
        CallConnection::http_connection(stream).await
    }

    async fn connect_quic(
        &self,
        transport: RemoteTransport,
        callee: &CalleeAddress,
    ) -> Result<CallConnection, RequestFailure> {
        let (dialer, early) = match transport {
            RemoteTransport::QuicEarly => (&self.early, EarlyData::Allowed),
            RemoteTransport::QuicResumed => (&self.early, EarlyData::Never),
            _ => {
                // Full handshakes forget the session of the last one, or QUIC would resume it.
                self.identity.full.1.forget_worker(&callee.name);
                (&self.full, EarlyData::Never)
            }
        };
        let line = dialer
            .dial_worker(callee.worker, &callee.name, CALL_TIMEOUT)
            .await
            .map_err(|_| RequestFailure::Connect)?;
        match line.is_early() || std::ptr::eq(dialer, &raw const self.full) {
            true => Ok(CallConnection::Quic(line, early)),
            false => Err(RequestFailure::Connect), // what is measured would be something else
        }
    }
}

impl CallConnection {
    async fn http_connection(
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    ) -> Result<Self, RequestFailure> {
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|_| RequestFailure::Connect)?;
        // Its end is seen by the sender, so the result has no reader.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Self::Http(sender))
    }

    /// Returns another handle for concurrent calls, if the transport multiplexes.
    pub(crate) fn clone_handle(&self) -> Option<Self> {
        match self {
            // HTTP/1.1 takes one request at a time; QUIC has a stream for each.
            Self::Http(_) => None,
            Self::Quic(line, early) => Some(Self::Quic(line.clone(), *early)),
        }
    }

    /// Makes a call and reads its whole response.
    pub(crate) async fn make_call(&mut self, sized_call: &SizedCall) -> Result<(), RequestFailure> {
        tokio::time::timeout(CALL_TIMEOUT, self.exchange(sized_call))
            .await
            .unwrap_or(Err(RequestFailure::Timeout))
    }

    async fn exchange(&mut self, sized_call: &SizedCall) -> Result<(), RequestFailure> {
        let (status, length) = match self {
            Self::Http(sender) => {
                sender.ready().await.map_err(|_| RequestFailure::Broken)?;
                let response = sender
                    .send_request(sized_call.build_request().map(Full::new))
                    .await
                    .map_err(|_| RequestFailure::Broken)?;
                (response.status(), count_body(response.into_body()).await?)
            }
            Self::Quic(line, early) => {
                let response = line
                    .call_buffered(sized_call.build_request(), *early)
                    .await
                    .map_err(|_| RequestFailure::Broken)?;
                (response.status(), count_body(response.into_body()).await?)
            }
        };
        match status {
            // The content is not compared, which would cost the caller CPU time; the length shows
            // truncation.
            StatusCode::OK if length == sized_call.response => Ok(()),
            StatusCode::OK => Err(RequestFailure::Body),
            other => Err(RequestFailure::Status(other.as_u16(), String::new())),
        }
    }

    /// Sends any request and returns its whole response.
    pub(crate) async fn request_whole(
        &mut self,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, RequestFailure> {
        tokio::time::timeout(CALL_TIMEOUT, self.collect_response(request))
            .await
            .unwrap_or(Err(RequestFailure::Timeout))
    }

    async fn collect_response(
        &mut self,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, RequestFailure> {
        match self {
            Self::Http(sender) => {
                sender.ready().await.map_err(|_| RequestFailure::Broken)?;
                let response = sender
                    .send_request(request.map(Full::new))
                    .await
                    .map_err(|_| RequestFailure::Broken)?;
                collect_body(response).await
            }
            Self::Quic(line, early) => {
                collect_body(
                    line.call_buffered(request, *early)
                        .await
                        .map_err(|_| RequestFailure::Broken)?,
                )
                .await
            }
        }
    }

    /// Closes the connection after the worker's data for each caller, such as sessions, has
    /// arrived. The data follows the handshake, for which a call in the first flight does not wait.
    ///
    /// # Errors
    /// [`RequestFailure::Broken`] if the worker rejected the first flight: the call was sent twice.
    pub(crate) async fn close_gracefully(self) -> Result<(), RequestFailure> {
        let Self::Quic(line, early) = self else {
            return Ok(());
        };
        let settled = tokio::time::timeout(CALL_TIMEOUT, line.wait_handshake()).await;
        // Session tickets follow the handshake by a round trip; closing earlier would lose them.
        tokio::time::sleep(line.rtt() + Duration::from_millis(1)).await; // how many come is the worker's to know
        line.close();
        match settled {
            Ok(Ok(taken)) if taken || early == EarlyData::Never => Ok(()),
            _ => Err(RequestFailure::Broken),
        }
    }
}

impl SizedCall {
    /// Creates a GET with a response of this size.
    pub(crate) fn for_get(response: usize) -> Self {
        Self {
            path: format!("/{response}"),
            body: Bytes::new(),
            response,
        }
    }

    /// Creates a POST of this size, which the response returns.
    pub(crate) fn for_post(bytes: usize) -> Self {
        Self {
            path: "/".to_owned(),
            body: vec![b'x'; bytes].into(),
            response: bytes,
        }
    }

    fn build_request(&self) -> Request<Bytes> {
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = if self.body.is_empty() {
            Method::GET
        } else {
            Method::POST
        };
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        request
            .headers_mut()
            .insert(http::header::HOST, http::HeaderValue::from_static("worker"));
        request
    }
}

async fn connect_tcp(addr: SocketAddr) -> Result<TcpStream, RequestFailure> {
    let stream = TcpStream::connect(addr)
        .await
        .map_err(|_| RequestFailure::Connect)?;
    stream
        .set_nodelay(true)
        .map_err(|_| RequestFailure::Connect)?;
    Ok(stream)
}

async fn collect_body<B: http_body::Body<Data = Bytes>>(
    response: Response<B>,
) -> Result<Response<Bytes>, RequestFailure> {
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|_| RequestFailure::Broken)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// Reads a body to its end without keeping it.
async fn count_body<B: http_body::Body<Data = Bytes> + Unpin>(
    mut body: B,
) -> Result<usize, RequestFailure> {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame
            .map_err(|_| RequestFailure::Broken)?
            .data_ref()
            .map_or(0, Bytes::len);
    }
    Ok(length)
}
