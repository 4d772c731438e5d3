//! HTTP/1.1 on a listening socket: with the watchdog's protocols, or with TLS without a caller's
//! certificate.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_wire::mtls::{DetectedProtocol, MtlsAcceptor, PeekedStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::BenchError;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Protocol of a port.
#[derive(Clone)]
pub(super) enum PortProtocol {
    /// Plain HTTP.
    Plain,
    /// Plain HTTP, and TLS with certificates on both sides.
    Worker(Rc<MtlsAcceptor>),
    /// TLS without a caller's certificate.
    Nameless(TlsAcceptor),
}

/// Opens a port.
pub(super) fn listen_on(addr: SocketAddr) -> Result<TcpListener, BenchError> {
    let socket = nearpath_wire::sockets::bind_tcp(addr, 1)?
        .pop()
        .ok_or("no socket")?;
    Ok(TcpListener::from_std(socket)?)
}

/// Serves requests forever. Must run inside a `LocalSet`.
pub(super) async fn serve_port<H, F, B>(listener: TcpListener, protocol: PortProtocol, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BenchError>,
{
    // An accept error ends the server, and the run with it: the lab has no reason for one.
    while let Ok(accepted) = listener.accept().await {
        tokio::task::spawn_local(serve_connection(
            protocol.clone(),
            accepted,
            handler.clone(),
        ));
    }
}

/// Serves a connection. The caller counts a broken one.
async fn serve_connection<H, F, B>(
    protocol: PortProtocol,
    (stream, from): (TcpStream, SocketAddr),
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BenchError>,
{
    match protocol {
        PortProtocol::Plain => serve_http(stream, handler).await,
        PortProtocol::Nameless(tls) => {
            // The caller counts a failed handshake.
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            serve_http(stream, handler).await;
        }
        PortProtocol::Worker(acceptor) => {
            let Ok(begun) = PeekedStream::peek(stream).await else {
                return;
            };
            if begun.detected_protocol() == DetectedProtocol::Plain {
                return serve_http(begun, handler).await;
            }
            let Ok((stream, peer)) = acceptor.accept_peer(begun, from, HANDSHAKE_TIMEOUT).await
            else {
                return;
            };
            if peer.admit_peer(SystemTime::now()).is_ok() {
                serve_http(stream, handler).await;
            }
        }
    }
}

async fn serve_http<H, F, B>(stream: impl AsyncRead + AsyncWrite + Unpin, handler: H)
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BenchError>,
{
    let service = service_fn(|request| {
        let response = handler(request);
        async { Ok::<_, Infallible>(response.await) }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await; // a caller that breaks off is no news
}
