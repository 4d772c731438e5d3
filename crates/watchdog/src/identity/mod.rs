//! Who this instance is, the ways in that need to know, QUIC and TLS, and the way out to those whom the node names.
//!
//! The node says it through the socket whose number is in `NEARPATH_IDENTITY_FD` (`contract/identity.md`): first credentials and the sessions that
//! were minted for it, later whatever of it changes, and whom it may call directly ([`crate::edges`]). TLS is spoken on the HTTP port, QUIC
//! on the same number over UDP, where calls to others go out, too. A call walks the same way as one over plain HTTP,
//! [`crate::serve::answer`]; limits, metrics and the drain know no difference.

mod line;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body::Body as _;
use nearpath_types::Reason;
use nearpath_types::frames::{BadFrame, FromNode};
use nearpath_wire::early::{Provision, ProvisionError};
use nearpath_wire::mutual;
use nearpath_wire::quic::frame::{Answered, UNKNOWN};
use nearpath_wire::quic::{Call, Caller, Refused, Worker, WorkerError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};

use crate::arrival::{Arrival, Bounded};
use crate::body::Body;
use crate::drain::{Open, Watch};
use crate::edges::Edges;
use crate::logs::say;
use crate::party;
use crate::patience::Busy;
use crate::refusal;
use crate::serve::{App, answer};
use line::Line;

/// Why there is no identity, or what came of a later frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the node's socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("the node's frame: {0}")]
    Frame(#[from] BadFrame),
    #[error("the node named others before this instance")]
    Order,
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("cannot speak TLS or QUIC: {0}")]
    Tls(#[from] mutual::ConfigError),
}

/// Serves on this address, which is that of the HTTP port, until the watch says to close. Without an identity, callers use plain HTTP. `listens` is
/// dropped as soon as it is known which. Where calls are picked up, `edges` learns whom they may go to directly.
pub(crate) async fn serve<S>(
    app: Arc<App>,
    addr: SocketAddr,
    node: S,
    watch: Watch,
    listens: Option<oneshot::Sender<()>>,
    edges: Option<Edges>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let taken = take_part(&app, addr, Line::new(node), watch, listens, edges).await;
    app.entrance.give_up(); // whatever was given stays good
    if let Err(fault) = taken {
        say!("calls from other machines go over plain HTTP, not over QUIC or TLS: {fault}");
    }
}

async fn take_part<S>(
    app: &Arc<App>,
    addr: SocketAddr,
    mut node: Line<S>,
    mut watch: Watch,
    listens: Option<oneshot::Sender<()>>,
    edges: Option<Edges>,
) -> Result<(), Fault>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let first = tokio::select! {
        first = node.next() => first?,
        () = watch.closed() => return Ok(()),
    };
    let Some(first) = first else { return Ok(()) }; // a node that gives no identities
    let FromNode::Provision(first) = FromNode::read(&first)? else { return Err(Fault::Order) };
    let provision = Provision::read(first)?;
    app.entrance.provision(&provision)?;
    let id = provision.credentials.id.clone();
    let (walking, open) = (Arc::clone(app), watch.open.clone());
    let started = socket(addr).map_err(WorkerError::from).and_then(|socket| {
        Worker::start(socket, provision, move |call| walk(Arc::clone(&walking), call, open.clone()))
    });
    match &started {
        Ok(_) => say!("TLS and QUIC on {addr} as {id}"),
        Err(fault) => say!("TLS on {addr} as {id}, but no QUIC: {fault}"), // a taken port, for one
    }
    drop(listens);
    tokio::task::spawn_local(complain("TLS", app.entrance.refused()));
    if let Ok(worker) = &started {
        tokio::task::spawn_local(complain("QUIC", worker.refused()));
    }
    let (app, worker) = (Arc::clone(app), started.ok());
    let mut office = Office { app, node: Some(node), worker, edges, out: mpsc::unbounded_channel() };
    tokio::select! {
        ended = office.work() => ended?,
        () = watch.closed() => {}
    }
    office.close(watch).await
}

/// What is between the node, those who call and those who are called.
struct Office<S, H> {
    app: Arc<App>,
    /// Nothing, when it has gone: what it said stays good until it ends.
    node: Option<Line<S>>,
    /// Nothing, where there is no QUIC.
    worker: Option<Worker<H>>,
    edges: Option<Edges>,
    /// What is for the node: at most a frame a second with counters, and what the few handshakes say.
    out: (mpsc::UnboundedSender<Vec<u8>>, mpsc::UnboundedReceiver<Vec<u8>>),
}

impl<S, H, F> Office<S, H>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Call) -> F + 'static,
    F: Future<Output = Response<Body>> + 'static,
{
    /// Hears the node, and tells it what there is to tell. Ends only with a fault.
    async fn work(&mut self) -> Result<(), Fault> {
        while let Some(node) = &mut self.node {
            tokio::select! {
                frame = node.next() => match frame? {
                    Some(frame) => self.hear(&frame)?,
                    None => self.node = None,
                },
                Some(frame) = self.out.1.recv() => node.write(&frame).await?,
            }
        }
        std::future::pending().await
    }

    fn hear(&mut self, frame: &[u8]) -> Result<(), Fault> {
        let edges = self.edges.as_ref();
        match FromNode::read(frame)? {
            FromNode::Provision(frame) => self.renew(Provision::read(frame)?)?,
            FromNode::Callees(all) => {
                let (Some(edges), Some(worker)) = (edges, &self.worker) else { return Ok(()) }; // nothing is picked up, or goes out
                if edges.is_empty() && !all.is_empty() {
                    edges.begin(worker.provision(), &|caller| worker.dialer(caller), self.out.0.clone())?;
                }
                edges.tell(all);
            }
            FromNode::Handshake(half) => edges.into_iter().for_each(|edges| edges.hear(half.clone())),
        }
        Ok(())
    }

    fn renew(&mut self, next: Provision) -> Result<(), Fault> {
        self.app.entrance.provision(&next)?;
        let Some(worker) = &mut self.worker else { return Ok(()) };
        let before = worker.provision().clone();
        worker.update(next)?;
        let (now, dialer) = (worker.provision(), |caller: &Caller| worker.dialer(caller));
        if let Some(edges) = self.edges.as_ref().filter(|_| before != *now) {
            edges.renew(now, before.credentials == now.credentials, &dialer)?;
        }
        Ok(())
    }

    /// Takes no more calls, and ends when those that are open have ended, its own included; or when they have no more time.
    async fn close(mut self, mut watch: Watch) -> Result<(), Fault> {
        let Some(worker) = self.worker else { return Ok(()) };
        let idle = async {
            worker.drain().await;
            if let Some(edges) = &self.edges {
                edges.idle().await;
            }
        };
        tokio::select! {
            () = idle => {}
            ended = tell(&mut self.node, &mut self.out.1) => ended?,
            () = watch.given_up() => worker.cut().await,
        }
        if let (Some(node), Ok(last)) = (&mut self.node, self.out.1.try_recv()) {
            let _ = node.write(&last).await; // a node that is gone counts nothing
        }
        worker.stop().await;
        Ok(())
    }
}

fn socket(addr: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(addr)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Goes on telling the node, while nothing that it says matters any more. Ends only with a fault.
async fn tell<S>(node: &mut Option<Line<S>>, out: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> Result<(), Fault>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let (Some(node), Some(frame)) = (node.as_mut(), out.recv().await) {
        node.write(&frame).await?;
    }
    std::future::pending().await
}

/// Writes down who was not let in: at most a line a second, so that nobody fills the log by knocking. Ends with the worker.
async fn complain(over: &str, mut refused: watch::Receiver<Refused>) {
    while refused.changed().await.is_ok() {
        let Refused { count, last } = refused.borrow_and_update().clone();
        say!("{over}: {count} callers refused so far, the last was {last}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn walk(app: Arc<App>, call: Call, open: Open) -> Response<Body> {
    let limit = app.config.premises.max_body;
    if let Some(limit) = limit.filter(|limit| call.request.body().size_hint().lower() > *limit as u64) {
        return said(refusal::answer(&party::too_large(limit)));
    }
    let mut request = call.request.map(|body| Arrival::Quic(Bounded::new(body, limit)));
    if call.asked.patience > 0 {
        party::tell_limit(request.headers_mut(), Some(Duration::from_nanos(call.asked.patience)));
    }
    said(answer(app, request, Busy::default().enter(), open).await)
}

/// An answer of the watchdog's own is marked as such beside HTTP's head, where no tenant can write.
fn said(mut response: Response<Body>) -> Response<Body> {
    if let Some(reason) = response.extensions().get::<Reason>() {
        let said =
            Answered { platform: true, status: response.status().as_u16(), reason: *reason as u16, total: UNKNOWN };
        response.extensions_mut().insert(said);
    }
    response
}
