//! One caller's connection: which protocol it speaks, and an answer for each of its requests.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_wire::replay::{self, Spoken};
use nearpath_wire::{BoxError, server};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;

use super::client_requests::Visit;
use super::client_socket::Caller;
use super::conn_state::Life;
use super::http1::{self, Left};
use super::http1_errors::Worded;
use super::stream_resets::Resets;
use super::tracked_stream::Watched;
use super::{ListenContext, Port};
use crate::request::Peer;

/// Serves one connection to its end, and keeps its `place` until then. Its requests are answered by [`crate::pipeline`].
pub(super) async fn serve_connection(
    context: Rc<ListenContext>,
    port: Rc<Port>,
    socket: TcpStream,
    addr: SocketAddr,
    _place: OwnedSemaphorePermit,
) {
    let ListenContext { worker: lane, connections } = &*context;
    let life = Life::new(lane.ticks());
    let peer = Rc::new(Peer::http_client(port.zone, port.tls.is_some(), addr));
    connections.add(life.clone());
    if port.is_draining() {
        connections.drain(lane.now()); // accepted in the same moment: it did not hear the order
    }
    let (resets, alt_svc) = (Rc::new(Resets::new(lane.now())), port.alt_svc.clone());
    let visit = Rc::new(Visit { lane: lane.clone(), peer, life: life.clone(), alt_svc, resets });
    match life.govern(serve(&visit, &port, Caller::new(socket, life.clone()))).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%addr, %error, "connection ended"),
        None => drop(lane.totals.connections_cut.fetch_add(1, Ordering::Relaxed)),
    }
    connections.remove(&life);
}

/// Small, because it is moved before it first runs: what is large is on the heap. `TCP_NODELAY` comes from the listener.
async fn serve(visit: &Rc<Visit>, port: &Port, mut stream: Caller) -> Result<(), BoxError> {
    if let Some(tls) = &port.tls {
        return Box::pin(encrypted(visit, port, tls, stream)).await;
    }
    match replay::tell(&mut stream).await? {
        None => Ok(()),
        Some((Spoken::Http1, seen)) => {
            http1(visit, port, Watched::new(stream, seen, visit.life.clone()).closed_by_drop()).await
        }
        Some((Spoken::Http2, seen)) => http2(visit, port, Watched::new(stream, seen, visit.life.clone())).await,
    }
}

async fn encrypted(
    visit: &Rc<Visit>,
    port: &Port,
    tls: &Arc<rustls::ServerConfig>,
    stream: Caller,
) -> Result<(), BoxError> {
    let handshake = TlsAcceptor::from(tls.clone()).accept(stream);
    let stream = tokio::time::timeout(port.tls_timeout, handshake).await.map_err(io::Error::from)??;
    visit.life.expects();
    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = Watched::new(stream, Bytes::new(), visit.life.clone());
    if h2 { http2(visit, port, stream).await } else { http1(visit, port, stream).await }
}

async fn http1<T>(visit: &Rc<Visit>, port: &Port, io: Watched<T>) -> Result<(), BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    visit.life.speaks(false);
    let io = match http1::serve(visit, io).await? {
        Left::Over => return Ok(()),
        Left::Handed(io) => io,
    };
    let io = Worded::new(io, visit.life.clone(), port.limits);
    let service = service_fn(|request| visit.answer(request));
    let connection = server::http1(&port.limits).serve_connection(TokioIo::new(io), service);
    let mut connection = Box::pin(connection.with_upgrades());
    let served = visit.to_its_end(connection.as_mut(), |connection| connection.graceful_shutdown()).await;
    visit.life.ended(); // upgraded, its stream lives on
    visit.judged(served, "HTTP/1.1")
}

async fn http2<T>(visit: &Rc<Visit>, port: &Port, io: Watched<T>) -> Result<(), BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    visit.life.speaks(true);
    let service = service_fn(|request| visit.answer_stream(request));
    let mut connection = Box::pin(server::http2(&port.limits).serve_connection(TokioIo::new(io), service));
    let served = visit.to_its_end(connection.as_mut(), |connection| connection.graceful_shutdown()).await;
    visit.judged(served, "HTTP/2")
}
