//! Client connections: detects the protocol and answers each request.

use std::cell::RefCell;
use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_wire::identity::{PeerRefusal, RefusalReason};
use nearpath_wire::preface::{self, ClearTextProtocol};
use nearpath_wire::{BoxError, server};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_connection::ClientConnection;
use super::client_socket::ClientSocket;
use super::client_transport::ClientTransport;
use super::conn_state::ConnState;
use super::connection_limit::ConnectionPermit;
use super::encrypted_socket::EncryptedSocket;
use super::http1::{self, Http1Outcome, TaskStart, TaskStep};
use super::http1_errors::Http1Stream;
use super::node_peer::{NodePeer, serve_while_admitted};
use super::stream_resets::ResetBudget;
use super::tracked_stream::TrackedStream;
use super::{ListenContext, ListenPort, ListenerTls};
use crate::request::{ListenerZone, PeerInfo};

/// A connection that was accepted. [`crate::pipeline`] answers its requests.
pub(super) struct AcceptedConnection {
    context: Rc<ListenContext>,
    port: Rc<ListenPort>,
    client: Rc<ClientConnection>,
    addr: SocketAddr,
    _permit: ConnectionPermit,
}

impl AcceptedConnection {
    /// Adds the connection to those that the sweep ends, until this is dropped. Its requests are for the
    /// function with `called_address`, if it has one.
    pub(super) fn register(
        context: Rc<ListenContext>,
        port: Rc<ListenPort>,
        (addr, called_address): (SocketAddr, Option<Ipv4Addr>),
        permit: ConnectionPermit,
    ) -> Self {
        let ListenContext { worker, conn_table } = &*context;
        let state = ConnState::new(worker.tick_counter());
        let mut peer = PeerInfo::http_client(port.zone, port.tls.is_some(), addr);
        peer.is_on_reserve = permit.is_reserve();
        peer.called_address = called_address;
        conn_table.add_connection(state.clone());
        if let Some(cause) = port.drain.cause() {
            // Accepted just now, after the drain order went out.
            conn_table.drain_all(worker.current_tick(), cause);
        }
        let client = Rc::new(ClientConnection {
            worker: worker.clone(),
            peer: Rc::new(peer),
            state,
            alt_svc: port.alt_svc.clone(),
            reset_budget: Rc::new(ResetBudget::new(worker.current_tick())),
            service: RefCell::default(),
        });
        Self {
            context,
            port,
            client,
            addr,
            _permit: permit,
        }
    }

    /// Serves the connection to its end: its first request in the event loop if that needs no wait, all
    /// else in a task.
    pub(super) fn serve(self, socket: TcpStream) {
        // The drain waits for the connection while it has no task.
        let (client, counted) = (self.client.clone(), self.client.worker.count_task());
        if self.port.tls.is_some() {
            return self.spawn(TaskStart::new(socket));
        }
        http1::serve_new(&client, socket, move |start| {
            self.spawn(start);
            drop(counted); // the task is counted by now: the count was never too small
        });
    }

    fn spawn(self, start: Box<TaskStart>) {
        let worker = self.client.worker.clone();
        worker.spawn(self.run(start));
    }

    /// Serves the connection in its task.
    async fn run(self, start: Box<TaskStart>) {
        let serving = pin!(serve_protocol(&self.client, &self.port, start));
        match self.client.state.run_until_cut(serving).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(addr = %self.addr, %error, "connection ended"),
            None => {
                let cut = &self.client.worker.totals.connections_cut;
                cut.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for AcceptedConnection {
    fn drop(&mut self) {
        self.context
            .conn_table
            .remove_connection(&self.client.state);
    }
}

/// Detects the protocol, unless it is known. Kept small, because the future is moved before its first
/// poll. The listener sets `TCP_NODELAY`.
async fn serve_protocol(
    connection: &Rc<ClientConnection>,
    port: &ListenPort,
    start: Box<TaskStart>,
) -> Result<(), BoxError> {
    let (state, poller) = (&connection.state, connection.worker.event_loop.poller());
    let TaskStart {
        socket,
        buffer,
        step,
    } = *start;
    let mut socket = ClientSocket::new(socket, poller.clone(), state.clone());
    if let Some(tls) = &port.tls {
        return Box::pin(serve_tls(connection, port, tls, socket)).await;
    }
    let detected = match state.is_protocol_known() {
        // The event loop has read a request: `step` says what follows.
        true => Some((ClearTextProtocol::Http1, buffer.freeze())),
        false => preface::read_protocol(&mut socket, buffer).await?,
    };
    let Some((protocol, unread)) = detected else {
        return Ok(());
    };
    let stream = TrackedStream::new(socket, unread, state.clone());
    match protocol {
        ClearTextProtocol::Http1 => serve_http1(connection, port, stream, step).await,
        ClearTextProtocol::Http2 => serve_http2(connection, port, stream).await,
    }
}

async fn serve_tls(
    connection: &Rc<ClientConnection>,
    port: &ListenPort,
    tls: &ListenerTls,
    stream: ClientSocket,
) -> Result<(), BoxError> {
    // The handshake has its own setting, so it has its own timer.
    let handshake = TlsAcceptor::from(tls.server_config()).accept(stream);
    let handshake = tokio::time::timeout(port.tls_timeout, handshake).await;
    let stream = handshake.map_err(io::Error::from).flatten();
    let stream = stream.inspect_err(|error| note_failed_handshake(connection, port, error))?;
    connection.state.expect_request();
    let ListenerTls::Nodes(tls) = tls else {
        return serve_encrypted(connection, port, stream).await;
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let (node, peer) = NodePeer::admit(tls, certificates)
        .inspect_err(|refusal| note_refused(connection, refusal))?;
    let _ = connection.peer.node.set(node); // set once, here
    let serving = serve_encrypted(connection, port, stream);
    serve_while_admitted(serving, end_when_refused(connection, peer)).await
}

/// Waits until the node is refused, and until its calls have ended if its certificate has.
async fn end_when_refused(
    connection: &Rc<ClientConnection>,
    peer: NodePeer,
) -> Result<(), BoxError> {
    let refusal = peer.wait_refused().await;
    note_refused(connection, &refusal);
    if matches!(refusal, PeerRefusal::Expired(_)) && !connection.state.is_service() {
        connection.state.drain_connection();
        return std::future::pending().await;
    }
    Err(refusal.into())
}

fn note_refused(connection: &ClientConnection, refusal: &PeerRefusal) {
    note_node_refusal(connection, refusal.into(), refusal);
}

/// Counts a node whose handshake failed. Other clients may do what they like.
fn note_failed_handshake(connection: &ClientConnection, port: &ListenPort, error: &io::Error) {
    if port.zone != ListenerZone::Node {
        return;
    }
    let inner = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<rustls::Error>());
    let reason = match inner.map(RefusalReason::from) {
        Some(reason) => reason,
        None if error.kind() == io::ErrorKind::TimedOut => RefusalReason::Timeout,
        None => RefusalReason::Handshake,
    };
    note_node_refusal(connection, reason, error);
}

fn note_node_refusal(connection: &ClientConnection, reason: RefusalReason, why: &dyn Display) {
    let (refusals, from) = (
        &connection.worker.totals.node_refusals,
        connection.peer.addr,
    );
    refusals.send_modify(|refused| refused.record(&from, reason, why));
}

/// Serves a connection after its handshake.
async fn serve_encrypted(
    connection: &Rc<ClientConnection>,
    port: &ListenPort,
    stream: TlsStream<ClientSocket>,
) -> Result<(), BoxError> {
    // Without ALPN the client speaks HTTP/1.1 (RFC 9113 section 3.2 requires ALPN for HTTP/2).
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = EncryptedSocket::new(stream);
    let stream = TrackedStream::new(stream, Bytes::new(), connection.state.clone());
    if is_h2 {
        serve_http2(connection, port, stream).await
    } else {
        serve_http1(connection, port, stream, TaskStep::Read).await
    }
}

async fn serve_http1<T>(
    connection: &Rc<ClientConnection>,
    port: &ListenPort,
    io: TrackedStream<T>,
    step: TaskStep,
) -> Result<(), BoxError>
where
    T: ClientTransport + Send + 'static,
{
    connection.state.set_protocol(false);
    let handed_over = match http1::serve_plain_requests(connection, io, step).await? {
        Http1Outcome::Closed => return Ok(()),
        Http1Outcome::HandedOver(io) => io,
    };
    // From the first request that is not plain, hyper serves the connection to its end.
    let io = Http1Stream::new(handed_over, connection.state.clone(), port.limits);
    let service = service_fn(|request| connection.answer_request(request));
    let http = server::http1_builder(&port.limits).serve_connection(TokioIo::new(io), service);
    let mut http = Box::pin(http.with_upgrades());
    let served = connection
        .run_until_end(http.as_mut(), |connection| connection.graceful_shutdown())
        .await;
    connection.state.mark_http_ended(); // after an upgrade, only the tunnel uses the stream
    connection.record_parse_error(served, "HTTP/1.1")
}

async fn serve_http2<T>(
    connection: &Rc<ClientConnection>,
    port: &ListenPort,
    io: TrackedStream<T>,
) -> Result<(), BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    connection.state.set_protocol(true);
    connection.state.note_read(); // the preface, or ALPN in the handshake
    let io = io.with_control_frame_limit();
    let service = service_fn(|request| connection.answer_stream_request(request));
    // On the heap: hyper's HTTP/2 state is large, and this future is moved several times.
    let mut http =
        Box::pin(server::http2_builder(&port.limits).serve_connection(TokioIo::new(io), service));
    let served = connection
        .run_until_end(http.as_mut(), |connection| connection.graceful_shutdown())
        .await;
    connection.record_parse_error(served, "HTTP/2")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the future that an `async fn` with these parameters returns.
    fn future_bytes<A, B, F: Future>(_: fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Every open connection holds one: ten thousand idle clients cost ten thousand times this.
    #[test]
    fn the_future_of_a_connection_keeps_its_bound() {
        let bytes = future_bytes(AcceptedConnection::run);
        assert!(bytes <= 4_000, "{bytes} bytes");
    }
}
