//! The watchdog as a QUIC worker, for callers on other machines, and as a caller of those that the node names.
//!
//! The node says who this instance is, through the socket whose number is in `NEARPATH_IDENTITY_FD`: first its credentials and the sessions
//! that were minted for it, later whatever of it changes, and whom it may call directly ([`crate::edges`]). QUIC listens on the number of
//! the HTTP port, over UDP; calls to others go out there, too. A call walks the same way as one over HTTP, [`crate::serve::answer`];
//! limits, metrics and the drain know no difference.

mod line;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body::Body as _;
use nearpath_types::Reason;
use nearpath_types::frames::{BadFrame, FromNode};
use nearpath_wire::early::{Provision, ProvisionError};
use nearpath_wire::quic::config::ConfigError;
use nearpath_wire::quic::frame::{Answered, UNKNOWN};
use nearpath_wire::quic::{Call, Caller, Refused, Worker, WorkerError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};

use crate::arrival::{Arrival, Bounded};
use crate::body::Body;
use crate::edges::Edges;
use crate::listen::{Open, Watch};
use crate::logs::say;
use crate::party;
use crate::patience::Busy;
use crate::refusal;
use crate::serve::{App, answer};
use line::Line;

/// Why there is no QUIC, or why it ended.
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
}

impl From<ConfigError> for Fault {
    fn from(fault: ConfigError) -> Self {
        Self::Worker(fault.into())
    }
}

/// Serves on this address, which is that of the HTTP port, until the watch says to close. Without QUIC, callers use HTTP. `listens` is told, or
/// dropped, as soon as it is known which. Where calls are picked up, `edges` learns whom they may go to directly.
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
    if let Err(fault) = take_part(app, addr, Line::new(node), watch, listens, edges).await {
        say!("calls from other machines go over HTTP, not over QUIC: {fault}");
    }
}

async fn take_part<S>(
    app: Arc<App>,
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
    let Some(first) = first else { return Ok(()) }; // a node that knows no QUIC
    let FromNode::Provision(first) = FromNode::read(&first)? else { return Err(Fault::Order) };
    let provision = Provision::read(first)?;
    let socket = UdpSocket::bind(addr)?;
    socket.set_nonblocking(true)?;
    let open = watch.open.clone();
    let worker = Worker::start(socket, provision, move |call| walk(Arc::clone(&app), call, open.clone()))?;
    say!("QUIC on {addr} as {}", worker.id());
    drop(listens);
    tokio::task::spawn_local(complain(worker.refused()));
    let mut office = Office { node: Some(node), worker, edges, out: mpsc::unbounded_channel() };
    tokio::select! {
        ended = office.work() => ended?,
        () = watch.closed() => {}
    }
    office.close(watch).await
}

/// What is between the node, those who call and those who are called.
struct Office<S, H> {
    /// Nothing, when it has gone: what it said stays good until it ends.
    node: Option<Line<S>>,
    worker: Worker<H>,
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
                let Some(edges) = edges else { return Ok(()) }; // nothing is picked up here
                if edges.is_empty() && !all.is_empty() {
                    edges.begin(self.worker.provision(), &|caller| self.worker.dialer(caller), self.out.0.clone())?;
                }
                edges.tell(all);
            }
            FromNode::Handshake(half) => edges.into_iter().for_each(|edges| edges.hear(half.clone())),
        }
        Ok(())
    }

    fn renew(&mut self, next: Provision) -> Result<(), Fault> {
        let before = self.worker.provision().clone();
        self.worker.update(next)?;
        let (now, dialer) = (self.worker.provision(), |caller: &Caller| self.worker.dialer(caller));
        if let Some(edges) = self.edges.as_ref().filter(|_| before != *now) {
            edges.renew(now, before.credentials == now.credentials, &dialer)?;
        }
        Ok(())
    }

    /// Takes no more calls, and ends when those that are open have ended, its own included; or when they have no more time.
    async fn close(mut self, mut watch: Watch) -> Result<(), Fault> {
        let (worker, edges) = (&self.worker, self.edges.clone());
        let idle = async {
            worker.drain().await;
            if let Some(edges) = edges {
                edges.idle().await;
            }
        };
        tokio::select! {
            () = idle => {}
            ended = tell(&mut self.node, &mut self.out.1) => ended?,
            () = watch.given_up() => self.worker.cut().await,
        }
        if let (Some(node), Ok(last)) = (&mut self.node, self.out.1.try_recv()) {
            let _ = node.write(&last).await; // a node that is gone counts nothing
        }
        self.worker.stop().await;
        Ok(())
    }
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
async fn complain(mut refused: watch::Receiver<Refused>) {
    while refused.changed().await.is_ok() {
        let Refused { count, last } = refused.borrow_and_update().clone();
        say!("QUIC: {count} callers refused so far, the last was {last}");
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
