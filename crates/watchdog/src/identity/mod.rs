//! Who this instance is, the ways in that need to know, QUIC and TLS, and the way out to those whom the node names.
//!
//! The node says it through the socket whose number is in `NEARPATH_IDENTITY_FD` (`contract/identity.md`): first credentials and the sessions that
//! were minted for it, later whatever of it changes, and whom it may call directly ([`crate::quic_peers`]). TLS is spoken on the HTTP port, QUIC
//! on the same number over UDP, where calls to others go out, too. A call walks the same way as one over plain HTTP,
//! [`crate::serve::answer`]; limits, metrics and the drain know no difference.

mod node_stream;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body::Body as _;
use nearpath_types::Reason;
use nearpath_types::frames::{IdentityFrameError, NodeFrame};
use nearpath_wire::mtls;
use nearpath_wire::quic::frame::{ResponseOpening, UNKNOWN_LENGTH};
use nearpath_wire::quic::{CallerConfig, QuicWorker, QuicWorkerError, RefusalStats, ServedCall};
use nearpath_wire::zero_rtt::{Provision, ProvisionError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};

use crate::drain::{CloseWatch, DrainToken};
use crate::errors;
use crate::incoming_body::{IncomingBody, LimitedBody};
use crate::logs::say;
use crate::quic_peers::QuicPeers;
use crate::response_body::WatchdogBody;
use crate::serve::{WatchdogState, handle_request};
use crate::shm_server;
use crate::stream_timeouts::BusyCount;
use node_stream::NodeStream;

/// Why there is no identity, or what came of a later frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentitySessionError {
    #[error("the node's socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("the node's frame: {0}")]
    Frame(#[from] IdentityFrameError),
    #[error("the node named others before this instance")]
    Order,
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error(transparent)]
    Worker(#[from] QuicWorkerError),
    #[error("cannot speak TLS or QUIC: {0}")]
    Tls(#[from] mtls::TlsConfigError),
}

/// Serves on this address, which is that of the HTTP port, until the watch says to close. Without an identity, callers use plain HTTP. `listens` is
/// dropped as soon as it is known which. Where calls are picked up, `edges` learns whom they may go to directly.
pub(crate) async fn serve_identity<S>(
    app: Arc<WatchdogState>,
    addr: SocketAddr,
    node: S,
    watch: CloseWatch,
    ready_signal: Option<oneshot::Sender<()>>,
    edges: Option<QuicPeers>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let outcome = run_session(
        &app,
        addr,
        NodeStream::new(node),
        watch,
        ready_signal,
        edges,
    )
    .await;
    app.tls_acceptor.stop_waiting(); // whatever was given stays good
    if let Err(fault) = outcome {
        say!("calls from other machines go over plain HTTP, not over QUIC or TLS: {fault}");
    }
}

async fn run_session<S>(
    app: &Arc<WatchdogState>,
    addr: SocketAddr,
    mut node: NodeStream<S>,
    mut watch: CloseWatch,
    ready_signal: Option<oneshot::Sender<()>>,
    edges: Option<QuicPeers>,
) -> Result<(), IdentitySessionError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let first = tokio::select! {
        first = node.next_frame() => first?,
        () = watch.wait_close_requested() => return Ok(()),
    };
    let Some(first) = first else { return Ok(()) }; // a node that gives no identities
    let NodeFrame::Provision(first) = NodeFrame::read(&first)? else {
        return Err(IdentitySessionError::Order);
    };
    let provision = Provision::decode(first)?;
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
        Ok(_) => say!("TLS and QUIC on {addr} as {id}"),
        Err(fault) => say!("TLS on {addr} as {id}, but no QUIC: {fault}"), // a taken port, for one
    }
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
        edges,
        outgoing: mpsc::unbounded_channel(),
    };
    tokio::select! {
        ended = session.run() => ended?,
        () = watch.wait_close_requested() => {}
    }
    session.drain_and_close(watch).await
}

/// What is between the node, those who call and those who are called.
struct IdentitySession<S, H> {
    app: Arc<WatchdogState>,
    /// Nothing, when it has gone: what it said stays good until it ends.
    node: Option<NodeStream<S>>,
    /// Nothing, where there is no QUIC.
    worker: Option<QuicWorker<H>>,
    edges: Option<QuicPeers>,
    /// What is for the node: at most a frame a second with counters, and what the few handshakes say.
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
    /// Hears the node, and tells it what there is to tell. Ends only with a fault.
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
        std::future::pending().await
    }

    fn handle_frame(&mut self, frame: &[u8]) -> Result<(), IdentitySessionError> {
        let edges = self.edges.as_ref();
        match NodeFrame::read(frame)? {
            NodeFrame::Provision(frame) => self.renew_provision(Provision::decode(frame)?)?,
            NodeFrame::Callees(entries) => {
                let (Some(edges), Some(worker)) = (edges, &self.worker) else {
                    return Ok(());
                }; // nothing is picked up, or goes out
                if edges.is_empty() && !entries.is_empty() {
                    edges.start(
                        worker.provision(),
                        &|caller| worker.dialer_as(caller),
                        self.outgoing.0.clone(),
                    )?;
                }
                edges.update_callees(entries);
            }
            NodeFrame::Handshake(handshake) => edges
                .into_iter()
                .for_each(|edges| edges.handle_handshake(handshake.clone())),
        }
        Ok(())
    }

    fn renew_provision(&mut self, next: Provision) -> Result<(), IdentitySessionError> {
        self.app.tls_acceptor.apply_provision(&next)?;
        let Some(worker) = &mut self.worker else {
            return Ok(());
        };
        let before = worker.provision().clone();
        worker.apply_provision(next)?;
        let (now, dialer) = (worker.provision(), |caller: &CallerConfig| {
            worker.dialer_as(caller)
        });
        if let Some(edges) = self.edges.as_ref().filter(|_| before != *now) {
            edges.renew_credentials(now, before.credentials == now.credentials, &dialer)?;
        }
        Ok(())
    }

    /// Takes no more calls, and ends when those that are open have ended, its own included; or when they have no more time.
    async fn drain_and_close(mut self, mut watch: CloseWatch) -> Result<(), IdentitySessionError> {
        let Some(worker) = self.worker else {
            return Ok(());
        };
        let idle = async {
            worker.drain().await;
            if let Some(edges) = &self.edges {
                edges.wait_idle().await;
            }
        };
        tokio::select! {
            () = idle => {}
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

fn bind_udp(addr: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(addr)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Goes on telling the node, while nothing that it says matters any more. Ends only with a fault.
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

/// Writes down who was not let in: at most a line a second, so that nobody fills the log by knocking. Ends with the worker.
async fn log_refusals(over: &str, mut refused: watch::Receiver<RefusalStats>) {
    while refused.changed().await.is_ok() {
        let RefusalStats { count, last } = refused.borrow_and_update().clone();
        say!("{over}: {count} callers refused so far, the last was {last}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn handle_call(
    app: Arc<WatchdogState>,
    call: ServedCall,
    token: DrainToken,
) -> Response<WatchdogBody> {
    let limit = app.config.instance_env.max_body_bytes;
    if let Some(limit) =
        limit.filter(|limit| call.request.body().size_hint().lower() > *limit as u64)
    {
        return mark_platform_response(errors::error_response(&shm_server::body_too_large(limit)));
    }
    let mut request = call
        .request
        .map(|body| IncomingBody::Quic(LimitedBody::new(body, limit)));
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

/// An answer of the watchdog's own is marked as such beside HTTP's head, where no tenant can write.
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
