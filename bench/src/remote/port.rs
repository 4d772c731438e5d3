//! HTTP/1.1 on a listening socket: as the watchdog's takes it, or in TLS where callers show no
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
    /// That, and TLS with certificates on both sides.
    Worker(Rc<MtlsAcceptor>),
    /// TLS where callers show none.
    Nameless(TlsAcceptor),
}

/// Opens a port.
pub(super) fn listen_on(addr: SocketAddr) -> Result<TcpListener, BenchError> {
    let socket = nearpath_wire::sockets::bind_tcp(addr, 1)?
        .pop()
        .ok_or("no socket")?;
    Ok(TcpListener::from_std(socket)?)
}

/// Answers what comes, for ever. Must run inside a `LocalSet`.
pub(super) async fn serve_port<H, F, B>(listener: TcpListener, door: PortProtocol, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BenchError>,
{
    // An accept error ends the server, and the run with it: the lab has no reason for one.
    while let Ok(accepted) = listener.accept().await {
        tokio::task::spawn_local(serve_connection(door.clone(), accepted, handler.clone()));
    }
}

/// Serves a connection. A broken one is counted by its caller.
async fn serve_connection<H, F, B>(
    door: PortProtocol,
    (stream, from): (TcpStream, SocketAddr),
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BenchError>,
{
    match door {
        PortProtocol::Plain => serve_http(stream, handler).await,
        PortProtocol::Nameless(tls) => {
            // The caller counts a failed handshake.
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            serve_http(stream, handler).await;
        }
        PortProtocol::Worker(entrance) => {
            let Ok(begun) = PeekedStream::peek(stream).await else {
                return;
            };
            if begun.detected_protocol() == DetectedProtocol::Plain {
                return serve_http(begun, handler).await;
            }
            let Ok((stream, guest)) = entrance.accept_peer(begun, from, HANDSHAKE_TIMEOUT).await
            else {
                return;
            };
            if guest.admit_peer(SystemTime::now()).is_ok() {
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
        let answer = handler(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await; // a caller that breaks off is no news
}
