//! HTTP/1.1 on a listening socket: as the watchdog's takes it, or in TLS where callers show no certificate.

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

use super::Error;

const HANDSHAKE: Duration = Duration::from_secs(20);

/// What is spoken on a port.
#[derive(Clone)]
pub(super) enum Door {
    /// Plain HTTP.
    Plain,
    /// That, and TLS with certificates on both sides.
    Worker(Rc<MtlsAcceptor>),
    /// TLS where callers show none.
    Nameless(TlsAcceptor),
}

/// Opens a port.
pub(super) fn listen(addr: SocketAddr) -> Result<TcpListener, Error> {
    let socket = nearpath_wire::sockets::bind_tcp(addr, 1)?
        .pop()
        .ok_or("no socket")?;
    Ok(TcpListener::from_std(socket)?)
}

/// Answers what comes, for ever. Must run inside a `LocalSet`.
pub(super) async fn serve<H, F, B>(listener: TcpListener, door: Door, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Error>,
{
    while let Ok(accepted) = listener.accept().await {
        tokio::task::spawn_local(connection(door.clone(), accepted, handler.clone()));
    }
}

/// One that breaks off counts where it was to be answered.
async fn connection<H, F, B>(door: Door, (stream, from): (TcpStream, SocketAddr), handler: H)
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Error>,
{
    match door {
        Door::Plain => one(stream, handler).await,
        Door::Nameless(tls) => {
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            one(stream, handler).await;
        }
        Door::Worker(entrance) => {
            let Ok(begun) = PeekedStream::peek(stream).await else {
                return;
            };
            if begun.detected_protocol() == DetectedProtocol::Plain {
                return one(begun, handler).await;
            }
            let Ok((stream, guest)) = entrance.accept_peer(begun, from, HANDSHAKE).await else {
                return;
            };
            if guest.admit_peer(SystemTime::now()).is_ok() {
                one(stream, handler).await;
            }
        }
    }
}

async fn one<H, F, B>(stream: impl AsyncRead + AsyncWrite + Unpin, handler: H)
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Error>,
{
    let service = service_fn(|request| {
        let answer = handler(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await; // a caller that breaks off is no news
}
