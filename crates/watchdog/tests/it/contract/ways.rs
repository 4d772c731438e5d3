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
use nearpath_wire::mutual::{Connector, Protocol, Version};
use nearpath_wire::quic::{self, Early};
use tokio::net::TcpStream;

use crate::contract::node::{NAME, Node};
use crate::contract::support::{BoxError, Watchdog};

/// A request's body.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// An answer's: on this thread.
pub(crate) type Answer = Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>;

const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);

/// What carries a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp(Protocol),
    Tls(Version, Protocol),
    Quic,
}

impl Way {
    /// Whether several calls go over one connection, and trailers without being asked for.
    pub(crate) fn is_multiplexed(self) -> bool {
        !matches!(self, Self::Tcp(Protocol::Http1) | Self::Tls(_, Protocol::Http1))
    }
}

/// An open connection.
pub(crate) enum Line {
    Http1(http1::SendRequest<AnyBody>),
    Http2(http2::SendRequest<AnyBody>, SocketAddr),
    Quic(quic::Line),
}

pub(crate) fn any<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

fn answer<B>(body: B) -> Answer
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    Box::pin(body.map_err(Into::into))
}

impl Line {
    /// As the node's gateway.
    pub(crate) async fn open(way: Way, node: &Node, watchdog: &Watchdog) -> Self {
        match way {
            Way::Tcp(protocol) => {
                let stream = TcpStream::connect(watchdog.addr).await.unwrap();
                Self::on(stream, protocol, watchdog.addr).await
            }
            Way::Tls(version, protocol) => Self::secured(&node.connector(), version, protocol, watchdog.addr).await,
            Way::Quic => Self::Quic(node.dial(watchdog).await),
        }
    }

    pub(crate) async fn secured(by: &Connector, version: Version, protocol: Protocol, addr: SocketAddr) -> Self {
        Self::on(by.dial(addr, NAME, version, protocol, LIMIT).await.unwrap().0, protocol, addr).await
    }

    async fn on<S>(stream: S, protocol: Protocol, addr: SocketAddr) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        match protocol {
            Protocol::Http1 => Self::Http1(client::http1_on(stream, addr).await.unwrap()),
            Protocol::Http2 => Self::Http2(client::http2_on(stream, addr).await.unwrap(), addr),
        }
    }

    pub(crate) async fn call(&mut self, mut request: Request<AnyBody>) -> Result<Response<Answer>, BoxError> {
        match self {
            Self::Http1(sender) => {
                request.headers_mut().insert("host", http::HeaderValue::from_static("function"));
                Ok(within(sender.send_request(request)).await?.map(answer))
            }
            Self::Http2(sender, addr) => {
                *request.uri_mut() = format!("http://{addr}{}", request.uri().path()).parse().unwrap();
                Ok(within(sender.send_request(request)).await?.map(answer))
            }
            Self::Quic(line) => Ok(within(line.call(request, Early::Allowed)).await?.map(answer)),
        }
    }
}
