//! HTTP/1.1 on a listening socket, with TLS or without.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::Error;

/// Opens a port.
pub(super) fn listen(addr: SocketAddr) -> Result<TcpListener, Error> {
    let socket = nearpath_wire::bind::bind(addr, 1)?.pop().ok_or("no socket")?;
    Ok(TcpListener::from_std(socket)?)
}

/// Answers what comes, for ever. Must run inside a `LocalSet`.
pub(super) async fn serve<H, F, B>(listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Error>,
{
    let tls = tls.map(TlsAcceptor::from);
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, handler) = (tls.clone(), handler.clone());
        tokio::task::spawn_local(async move {
            match tls {
                None => one(stream, handler).await,
                Some(tls) => secured(tls, stream, handler).await,
            }
        });
    }
}

async fn secured<H, F, B>(tls: TlsAcceptor, stream: TcpStream, handler: H)
where
    H: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Error>,
{
    if let Ok(stream) = tls.accept(stream).await {
        one(stream, handler).await; // one that breaks off counts where it was to be answered
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
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await; // a caller that breaks off is no news
}
