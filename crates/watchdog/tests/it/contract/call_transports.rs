//! Every way to call a watchdog, behind one way to ask.

use std::net::SocketAddr;
use std::pin::Pin;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Body;
use hyper::client::conn::{http1, http2};
use nearpath_testkit::within;
use nearpath_wire::client;
use nearpath_wire::mtls::{AlpnProtocol, MtlsConnector, TlsVersion};
use nearpath_wire::quic::{self, EarlyData};
use tokio::net::TcpStream;

use crate::contract::node::{INSTANCE_NAME, IdentityFixture};
use crate::contract::support::{AnyError, WatchdogProcess};

/// A request's body.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, AnyError>;

/// An answer's: on this thread.
pub(crate) type BoxedBody = Pin<Box<dyn Body<Data = Bytes, Error = AnyError>>>;

const DIAL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

/// Transport of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestTransport {
    Tcp(AlpnProtocol),
    Tls(TlsVersion, AlpnProtocol),
    Quic,
}

impl TestTransport {
    /// Returns whether several calls share a connection, which also carries trailers unasked.
    pub(crate) fn is_multiplexed(self) -> bool {
        !matches!(
            self,
            Self::Tcp(AlpnProtocol::Http1) | Self::Tls(_, AlpnProtocol::Http1)
        )
    }
}

/// An open connection.
pub(crate) enum TestConnection {
    Http1(http1::SendRequest<AnyBody>),
    Http2(http2::SendRequest<AnyBody>, SocketAddr),
    Quic(quic::CallerConnection),
}

pub(crate) fn any_body<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<AnyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

fn boxed_body<B>(body: B) -> BoxedBody
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<AnyError>,
{
    Box::pin(body.map_err(Into::into))
}

impl TestConnection {
    /// As the node's gateway.
    pub(crate) async fn open(
        way: TestTransport,
        node: &IdentityFixture,
        watchdog: &WatchdogProcess,
    ) -> Self {
        match way {
            TestTransport::Tcp(protocol) => {
                let stream = TcpStream::connect(watchdog.addr).await.unwrap();
                Self::open_on(stream, protocol, watchdog.addr).await
            }
            TestTransport::Tls(version, protocol) => {
                Self::open_tls(&node.connector(), version, protocol, watchdog.addr).await
            }
            TestTransport::Quic => Self::Quic(node.dial(watchdog).await),
        }
    }

    pub(crate) async fn open_tls(
        by: &MtlsConnector,
        version: TlsVersion,
        protocol: AlpnProtocol,
        addr: SocketAddr,
    ) -> Self {
        Self::open_on(
            by.dial_worker(addr, INSTANCE_NAME, version, protocol, DIAL_TIMEOUT)
                .await
                .unwrap()
                .0,
            protocol,
            addr,
        )
        .await
    }

    async fn open_on<S>(stream: S, protocol: AlpnProtocol, addr: SocketAddr) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        match protocol {
            AlpnProtocol::Http1 => {
                Self::Http1(client::handshake_http1(stream, addr).await.unwrap())
            }
            AlpnProtocol::Http2 => {
                Self::Http2(client::handshake_http2(stream, addr).await.unwrap(), addr)
            }
        }
    }

    pub(crate) async fn call(
        &mut self,
        mut request: Request<AnyBody>,
    ) -> Result<Response<BoxedBody>, AnyError> {
        match self {
            Self::Http1(sender) => {
                request
                    .headers_mut()
                    .insert("host", http::HeaderValue::from_static("function"));
                Ok(within(sender.send_request(request)).await?.map(boxed_body))
            }
            Self::Http2(sender, addr) => {
                *request.uri_mut() = format!("http://{addr}{}", request.uri().path())
                    .parse()
                    .unwrap();
                Ok(within(sender.send_request(request)).await?.map(boxed_body))
            }
            Self::Quic(line) => Ok(within(line.call(request, EarlyData::Allowed))
                .await?
                .map(boxed_body)),
        }
    }
}
