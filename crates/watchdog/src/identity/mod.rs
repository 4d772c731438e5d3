//! Identity of this instance, the listeners that need it (QUIC and TLS), and direct calls to
//! functions that the node names.
//!
//! The node sends it through the socket in `NEARPATH_IDENTITY_FD` (`contract/identity.md`): first
//! credentials and minted sessions, later every change of them, and the functions that may be
//! called directly ([`crate::quic_peers`]). TLS shares the HTTP port. QUIC uses the same number
//! over UDP, also for outgoing calls. A call is handled as over plain HTTP, by
//! [`crate::serve::handle_request`], with the same limits, metrics and drain.

mod descriptor_stream;
mod node_stream;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body::Body as _;
use nearpath_types::Reason;
use nearpath_types::frames::{IdentityFrameError, NodeFrame};
use nearpath_types::spiffe::SpiffeRole;
use nearpath_wire::mtls;
use nearpath_wire::quic::frame::{ResponseOpening, UNKNOWN_LENGTH};
use nearpath_wire::quic::{CallerConfig, QuicWorker, QuicWorkerError, RefusalStats, ServedCall};
use nearpath_wire::zero_rtt::{Provision, ProvisionError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};

use crate::drain::{CloseWatch, DrainToken};
use crate::errors;
use crate::incoming_body::{IncomingBody, LimitedBody};
use crate::logs::log_line;
use crate::quic_peers::{PeerDialers, QuicPeers};
use crate::response_body::WatchdogBody;
use crate::serve::{WatchdogState, handle_request};
use crate::shm_server;
use crate::stream_timeouts::BusyCount;
pub(crate) use descriptor_stream::{DescriptorStream, ReceivedDescriptors};
use node_stream::NodeStream;

/// Error of the identity session: there is no identity, or a later frame is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentitySessionError {
    #[error("the node's socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("the node's frame: {0}")]
    Frame(#[from] IdentityFrameError),
    #[error("the node's first frame is no provision: install node and watchdog of one release")]
    Order,
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error(transparent)]
    Worker(#[from] QuicWorkerError),
    #[error("cannot speak TLS or QUIC: {0}")]
    Tls(#[from] mtls::TlsConfigError),
}

/// Serves TLS and QUIC on the address of the HTTP port until the watch closes. Without an identity,
/// callers use plain HTTP. `ready_signal` is dropped as soon as that is decided. With an outbound
/// proxy, `quic_peers` receives the callees.
pub(crate) async fn serve_identity<S>(
    app: Arc<WatchdogState>,
    addr: SocketAddr,
    node: S,
    watch: CloseWatch,
    ready_signal: Option<oneshot::Sender<()>>,
    quic_peers: Option<QuicPeers>,
    received: ReceivedDescriptors,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let outcome = run_session(
        &app,
        addr,
        NodeStream::new(node),
        watch,
        ready_signal,
        quic_peers,
        received,
    )
    .await;
    app.tls_acceptor.stop_waiting(); // credentials received so far stay valid
    if let Err(fault) = outcome {
        log_line!(
            "identity: calls from other machines go over plain HTTP, not over QUIC or TLS: {fault}"
        );
    }
}

async fn run_session<S>(
    app: &Arc<WatchdogState>,
    addr: SocketAddr,
    mut node: NodeStream<S>,
    mut watch: CloseWatch,
    ready_signal: Option<oneshot::Sender<()>>,
    quic_peers: Option<QuicPeers>,
    received: ReceivedDescriptors,
) -> Result<(), IdentitySessionError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let first = tokio::select! {
        first = node.next_frame() => first?,
        () = watch.wait_close_requested() => return Ok(()),
    };
    let Some(first) = first else { return Ok(()) }; // a node that gives no identities
    // Callees mean nothing without an identity, so the contract has the provision first.
    let NodeFrame::Provision(first) = NodeFrame::read(&first)? else {
        return Err(IdentitySessionError::Order);
    };
    let provision = Provision::decode(first)?;
    // TLS before QUIC: it has no port of its own that another process could hold.
    app.tls_acceptor.apply_provision(&provision)?;
    let id = provision.credentials.id.clone();
    let (shared_app, token) = (Arc::clone(app), watch.token.clone());
    let started = bind_udp(addr)
        .map_err(QuicWorkerError::from)
        .and_then(|socket| {
            QuicWorker::start(socket, provision, move |call| {
                handle_call(Arc::clone(&shared_app), call, token.clone())
            })
        });
    match &started {
        Ok(_) => log_line!("TLS and QUIC on {addr} as {id}"),
        Err(fault) => log_line!("TLS on {addr} as {id}, but no QUIC: {fault}"), // for example a taken port
    }
    // Callers find either TLS and QUIC or plain HTTP from here on, so the instance may become
    // ready.
    drop(ready_signal);
    tokio::task::spawn_local(log_refusals("TLS", app.tls_acceptor.refusals()));
    if let Ok(worker) = &started {
        tokio::task::spawn_local(log_refusals("QUIC", worker.refusals()));
    }
    let (app, worker) = (Arc::clone(app), started.ok());
    let mut session = IdentitySession {
        app,
        node: Some(node),
        worker,
        quic_peers,
        received,
        outgoing: mpsc::unbounded_channel(),
    };
    tokio::select! {
        ended = session.run() => ended?,
        () = watch.wait_close_requested() => {}
    }
    session.drain_and_close(watch).await
}

/// Session between the node, the callers and the callees.
struct IdentitySession<S, H> {
    app: Arc<WatchdogState>,
    /// Stream to the node; `None` after the node has closed it. Its credentials stay valid until
    /// they expire.
    node: Option<NodeStream<S>>,
    /// `None` without QUIC.
    worker: Option<QuicWorker<H>>,
    quic_peers: Option<QuicPeers>,
    /// Descriptors that came with frames.
    received: ReceivedDescriptors,
    /// Frames for the node: at most one report a second, and those of few handshakes.
    outgoing: (
        mpsc::UnboundedSender<Vec<u8>>,
        mpsc::UnboundedReceiver<Vec<u8>>,
    ),
}

impl<S, H, F> IdentitySession<S, H>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<WatchdogBody>> + 'static,
{
    /// Handles the node's frames and sends queued ones. Ends only with an error.
    async fn run(&mut self) -> Result<(), IdentitySessionError> {
        while let Some(node) = &mut self.node {
            tokio::select! {
                frame = node.next_frame() => match frame? {
                    Some(frame) => self.handle_frame(&frame)?,
                    None => self.node = None,
                },
                Some(frame) = self.outgoing.1.recv() => node.write_frame(&frame).await?,
            }
        }
        // Without the node nothing changes any more, but connections and calls go on.
        std::future::pending().await
    }

    fn handle_frame(&mut self, frame: &[u8]) -> Result<(), IdentitySessionError> {
        let quic_peers = self.quic_peers.as_ref();
        match NodeFrame::read(frame)? {
            NodeFrame::Provision(frame) => self.renew_provision(Provision::decode(frame)?)?,
            NodeFrame::Callees(entries) => {
                let (Some(quic_peers), Some(worker)) = (quic_peers, &self.worker) else {
                    return Ok(());
                }; // no outbound proxy, or no QUIC
                // Started with the first callee: an instance without direct calls keeps no state
                // for them.
                if quic_peers.is_empty() && !entries.is_empty() {
                    let dialers = |caller: &CallerConfig| dialers_of(worker, caller);
                    quic_peers.start(worker.provision(), &dialers, self.outgoing.0.clone())?;
                }
                quic_peers.update_callees(entries);
            }
            NodeFrame::Handshake(handshake) => quic_peers
                .into_iter()
                .for_each(|quic_peers| quic_peers.handle_handshake(handshake.clone())),
            NodeFrame::Socket => self.serve_machine_socket()?,
        }
        Ok(())
    }

    /// Serves other machines on the socket that came with the frame, and calls them from there.
    fn serve_machine_socket(&mut self) -> Result<(), IdentitySessionError> {
        let (Some(socket), Some(worker)) = (self.received.take(), &mut self.worker) else {
            return Ok(()); // without QUIC there are no direct calls
        };
        let socket = UdpSocket::from(socket);
        let addr = socket.local_addr()?;
        worker.add_socket(socket)?;
        log_line!("QUIC for other nodes on {addr}, a socket of the machine");
        if let Some(quic_peers) = &self.quic_peers {
            quic_peers.renew_dialers(&|caller| dialers_of(worker, caller));
        }
        Ok(())
    }

    fn renew_provision(&mut self, next: Provision) -> Result<(), IdentitySessionError> {
        self.app.tls_acceptor.apply_provision(&next)?;
        let Some(worker) = &mut self.worker else {
            return Ok(());
        };
        // A copy, because `update` replaces it, and equal credentials keep their sessions.
        let before = worker.provision().clone();
        worker.apply_provision(next)?;
        let (now, dialers) = (worker.provision(), |caller: &CallerConfig| {
            dialers_of(worker, caller)
        });
        let has_same_roots = before.has_same_roots(now);
        let same_certificate = before.credentials == now.credentials && has_same_roots;
        // Permitted callers change often, and mean nothing for the calls of this instance.
        let concerns_calls = !same_certificate || before.revoked != now.revoked;
        if let Some(quic_peers) = self.quic_peers.as_ref().filter(|_| concerns_calls) {
            quic_peers.renew_credentials(now, same_certificate, &dialers)?;
        }
        Ok(())
    }

    /// Accepts no more calls and waits for open ones, incoming and own. Ends early when the drain
    /// does.
    async fn drain_and_close(mut self, mut watch: CloseWatch) -> Result<(), IdentitySessionError> {
        let Some(worker) = self.worker else {
            return Ok(());
        };
        let idle = async {
            worker.drain().await;
            if let Some(quic_peers) = &self.quic_peers {
                quic_peers.wait_idle().await;
            }
        };
        tokio::select! {
            () = idle => {}
            // The callees' handshakes and the counts of the last calls still need the node.
            ended = forward_frames(&mut self.node, &mut self.outgoing.1) => ended?,
            () = watch.wait_drain_ended() => worker.close_now().await,
        }
        if let (Some(node), Ok(last)) = (&mut self.node, self.outgoing.1.try_recv()) {
            let _ = node.write_frame(&last).await; // a node that is gone counts nothing
        }
        worker.stop().await;
        Ok(())
    }
}

/// Returns the dialers of a worker's sockets with the identity of `caller`.
fn dialers_of<H, F>(worker: &QuicWorker<H>, caller: &CallerConfig) -> PeerDialers
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<WatchdogBody>> + 'static,
{
    PeerDialers {
        local: worker.dialer_as(caller),
        direct: worker.direct_dialer_as(caller),
    }
}

fn bind_udp(addr: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(addr)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends queued frames to the node, whose own do not matter any more. Ends only with an error.
async fn forward_frames<S>(
    node: &mut Option<NodeStream<S>>,
    outgoing: &mut mpsc::UnboundedReceiver<Vec<u8>>,
) -> Result<(), IdentitySessionError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let (Some(node), Some(frame)) = (node.as_mut(), outgoing.recv().await) {
        node.write_frame(&frame).await?;
    }
    std::future::pending().await
}

/// Logs refused callers, at most one line a second, so that a flood of connections cannot fill the
/// log. Ends with the worker.
async fn log_refusals(over: &str, mut refused: watch::Receiver<RefusalStats>) {
    while refused.changed().await.is_ok() {
        let RefusalStats { count, last, .. } = refused.borrow_and_update().clone();
        log_line!("{over}: {count} callers refused so far, the last was {last}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn handle_call(
    app: Arc<WatchdogState>,
    call: ServedCall,
    token: DrainToken,
) -> Response<WatchdogBody> {
    let limit = app.config.instance_env.max_body_bytes;
    // The declared length alone may be above the limit, so nothing has to be read.
    if let Some(limit) =
        limit.filter(|limit| call.request.body().size_hint().lower() > *limit as u64)
    {
        return mark_platform_response(errors::error_response(&shm_server::body_too_large(limit)));
    }
    let mut request = call
        .request
        .map(|body| IncomingBody::Quic(LimitedBody::new(body, limit)));
    if let SpiffeRole::Instance(function, _) = &call.peer.id.role {
        shm_server::set_caller(request.headers_mut(), &function.to_string());
    }
    // 0: the caller set no limit (`contract/quic.md`).
    if call.opening.timeout_nanos > 0 {
        shm_server::set_time_limit(
            request.headers_mut(),
            Some(Duration::from_nanos(call.opening.timeout_nanos)),
        );
    }
    mark_platform_response(
        handle_request(app, request, BusyCount::default().begin_request(), token).await,
    )
}

/// Marks a response of the watchdog itself beside HTTP's head, where no tenant can write.
fn mark_platform_response(mut response: Response<WatchdogBody>) -> Response<WatchdogBody> {
    if let Some(reason) = response.extensions().get::<Reason>() {
        let mark = ResponseOpening {
            is_platform: true,
            status: response.status().as_u16(),
            reason_number: *reason as u16,
            body_length: UNKNOWN_LENGTH,
        };
        response.extensions_mut().insert(mark);
    }
    response
}
