//! Connections of one thread, in every way.

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

use super::site::Identity;
use super::{Error, Way};
use crate::tally::Failure;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a worker is, and what it is called.
#[derive(Debug, Clone)]
pub(crate) struct Callee {
    /// TCP, without TLS or with certificates on both sides, and QUIC over UDP.
    pub(crate) worker: SocketAddr,
    /// TLS with the worker's certificate alone.
    pub(crate) server: SocketAddr,
    pub(crate) name: String,
}

/// What is asked.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) path: String,
    /// With one it is a POST.
    pub(crate) body: Bytes,
    /// Bytes of the answer.
    pub(crate) answer: usize,
}

/// See the module's text. Must live inside a `LocalSet`.
pub(crate) struct Caller {
    identity: Identity,
    early: Dialer,
    full: Dialer,
    /// There was a handshake that leaves a session for the next one.
    met: Cell<bool>,
}

/// An open connection.
pub(crate) enum Connection {
    Http(SendRequest<Full<Bytes>>),
    Quic(CallerConnection, EarlyData),
}

impl Callee {
    /// The same worker, for callers who reach its machine by another address.
    pub(crate) fn at(&self, addr: IpAddr) -> Self {
        let at = |old: SocketAddr| SocketAddr::new(addr, old.port());
        Self {
            worker: at(self.worker),
            server: at(self.server),
            name: self.name.clone(),
        }
    }
}

impl Caller {
    /// Its sockets belong to the namespace of the thread that this runs on.
    pub(crate) fn new(identity: Identity) -> Result<Self, Error> {
        let dialer = |config: &ClientConfig| -> Result<Dialer, Error> {
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
            met: Cell::new(false),
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// [`Failure::Connect`] also when a call is to go in the first flight and there is no session for it.
    pub(crate) async fn open(&self, way: Way, callee: &Callee) -> Result<Connection, Failure> {
        let opening = async {
            match way {
                Way::Tcp => Connection::http(tcp(callee.worker).await?).await,
                Way::Tls12Server | Way::Tls13Server => self.nameless(way, callee).await,
                Way::Tls12 | Way::Tls13 | Way::Tls13Resumed => self.tls(way, callee).await,
                Way::Quic | Way::QuicResumed | Way::QuicEarly | Way::QuicReady => {
                    self.quic(way, callee).await
                }
            }
        };
        tokio::time::timeout(PATIENCE, opening)
            .await
            .unwrap_or(Err(Failure::Timeout))
    }

    async fn nameless(&self, way: Way, callee: &Callee) -> Result<Connection, Failure> {
        let config = self.identity.nameless.of(way).ok_or(Failure::Connect)?;
        let name = ServerName::try_from(callee.name.clone()).map_err(|_| Failure::Connect)?;
        let stream = TlsConnector::from(Arc::clone(config))
            .connect(name, tcp(callee.server).await?)
            .await;
        Connection::http(stream.map_err(|_| Failure::Connect)?).await
    }

    async fn tls(&self, way: Way, callee: &Callee) -> Result<Connection, Failure> {
        let Identity {
            tls_resumed,
            tls_full: (full, sessions),
            ..
        } = &self.identity;
        let (connector, version) = match way {
            Way::Tls13Resumed => (tls_resumed, TlsVersion::Tls13),
            Way::Tls12 => (full, TlsVersion::Tls12),
            _ => (full, TlsVersion::Tls13),
        };
        sessions.forget_worker(&callee.name);
        let stream = connector
            .dial_worker(
                callee.worker,
                &callee.name,
                version,
                AlpnProtocol::Http1,
                PATIENCE,
            )
            .await;
        let (stream, _) = stream.map_err(|_| Failure::Connect)?;
        let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        if way == Way::Tls13Resumed && !resumed && self.met.replace(true) {
            return Err(Failure::Connect); // what is measured would be something else
        }
        Connection::http(stream).await
    }

    async fn quic(&self, way: Way, callee: &Callee) -> Result<Connection, Failure> {
        let (dialer, early) = match way {
            Way::QuicEarly => (&self.early, EarlyData::Allowed),
            Way::QuicResumed => (&self.early, EarlyData::Never),
            _ => {
                self.identity.full.1.forget_worker(&callee.name);
                (&self.full, EarlyData::Never)
            }
        };
        let line = dialer
            .dial_worker(callee.worker, &callee.name, PATIENCE)
            .await
            .map_err(|_| Failure::Connect)?;
        match line.is_early() || std::ptr::eq(dialer, &raw const self.full) {
            true => Ok(Connection::Quic(line, early)),
            false => Err(Failure::Connect), // what is measured would be something else
        }
    }
}

impl Connection {
    async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + 'static) -> Result<Self, Failure> {
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Failure::Connect)?;
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Self::Http(sender))
    }

    /// Another handle for calls at the same time, where the transport has such.
    pub(crate) fn another(&self) -> Option<Self> {
        match self {
            Self::Http(_) => None,
            Self::Quic(line, early) => Some(Self::Quic(line.clone(), *early)),
        }
    }

    /// One call and its whole answer.
    pub(crate) async fn ask(&mut self, ask: &Ask) -> Result<(), Failure> {
        tokio::time::timeout(PATIENCE, self.exchange(ask))
            .await
            .unwrap_or(Err(Failure::Timeout))
    }

    async fn exchange(&mut self, ask: &Ask) -> Result<(), Failure> {
        let (status, length) = match self {
            Self::Http(sender) => {
                sender.ready().await.map_err(|_| Failure::Broken)?;
                let answer = sender
                    .send_request(ask.request().map(Full::new))
                    .await
                    .map_err(|_| Failure::Broken)?;
                (answer.status(), length(answer.into_body()).await?)
            }
            Self::Quic(line, early) => {
                let answer = line
                    .call_buffered(ask.request(), *early)
                    .await
                    .map_err(|_| Failure::Broken)?;
                (answer.status(), length(answer.into_body()).await?)
            }
        };
        match status {
            StatusCode::OK if length == ask.answer => Ok(()),
            StatusCode::OK => Err(Failure::Body),
            other => Err(Failure::Status(other.as_u16(), String::new())),
        }
    }

    /// Any request and its answer as a whole.
    pub(crate) async fn whole(
        &mut self,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, Failure> {
        tokio::time::timeout(PATIENCE, self.collected(request))
            .await
            .unwrap_or(Err(Failure::Timeout))
    }

    async fn collected(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, Failure> {
        match self {
            Self::Http(sender) => {
                sender.ready().await.map_err(|_| Failure::Broken)?;
                let answer = sender
                    .send_request(request.map(Full::new))
                    .await
                    .map_err(|_| Failure::Broken)?;
                collect(answer).await
            }
            Self::Quic(line, early) => {
                collect(
                    line.call_buffered(request, *early)
                        .await
                        .map_err(|_| Failure::Broken)?,
                )
                .await
            }
        }
    }

    /// Ends it when what a worker gives to each caller has come, sessions among it: they follow the handshake, which a call in the
    /// first flight does not wait for.
    ///
    /// # Errors
    /// [`Failure::Broken`] when the worker did not take the first flight: the call went a second time.
    pub(crate) async fn end(self) -> Result<(), Failure> {
        let Self::Quic(line, early) = self else {
            return Ok(());
        };
        let settled = tokio::time::timeout(PATIENCE, line.wait_handshake()).await;
        tokio::time::sleep(line.rtt() + Duration::from_millis(1)).await; // how many come is the worker's to know
        line.close();
        match settled {
            Ok(Ok(taken)) if taken || early == EarlyData::Never => Ok(()),
            _ => Err(Failure::Broken),
        }
    }
}

impl Ask {
    /// A GET that is answered with so many bytes.
    pub(crate) fn get(answer: usize) -> Self {
        Self {
            path: format!("/{answer}"),
            body: Bytes::new(),
            answer,
        }
    }

    /// A POST that is answered with its body, so many bytes.
    pub(crate) fn post(bytes: usize) -> Self {
        Self {
            path: "/".to_owned(),
            body: vec![b'x'; bytes].into(),
            answer: bytes,
        }
    }

    fn request(&self) -> Request<Bytes> {
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

async fn tcp(addr: SocketAddr) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(addr)
        .await
        .map_err(|_| Failure::Connect)?;
    stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
    Ok(stream)
}

async fn collect<B: http_body::Body<Data = Bytes>>(
    answer: Response<B>,
) -> Result<Response<Bytes>, Failure> {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|_| Failure::Broken)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// Reads a body to its end without keeping it.
async fn length<B: http_body::Body<Data = Bytes> + Unpin>(mut body: B) -> Result<usize, Failure> {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame
            .map_err(|_| Failure::Broken)?
            .data_ref()
            .map_or(0, Bytes::len);
    }
    Ok(length)
}
