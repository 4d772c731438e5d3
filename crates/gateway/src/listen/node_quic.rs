//! Calls from other nodes over QUIC (`contract/node.md`). Each thread has its own socket and endpoint, from
//! which it also calls other nodes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use nearpath_daemon::drain;
use nearpath_types::SpiffeId;
use nearpath_wire::h3::CidRouting;
use nearpath_wire::identity::PeerIdentity;
use nearpath_wire::node_tls::NodeTls;
use nearpath_wire::quic::frame::{ResponseOpening, UNKNOWN_LENGTH};
use nearpath_wire::quic::{self, CallServer, ServedCall, close_code, udp};
use quinn::Endpoint;
use tokio::sync::watch;

use super::{GatewayListener, ListenContext, ListenerTls};
use crate::context::WorkerContext;
use crate::deliver::ResponseContent;
use crate::pipeline::{self, PlatformRefusal};
use crate::request::{CallerBody, ListenerZone, PeerInfo};

/// Time for the last packets to leave.
const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// The port for other nodes as served by one thread.
pub(crate) struct NodeQuicPort {
    pub(crate) socket: UdpSocket,
    pub(crate) routing: CidRouting,
    /// Number of the thread, which is part of its connection ids.
    pub(crate) thread: usize,
    pub(crate) tls: watch::Receiver<Arc<NodeTls>>,
    pub(crate) drain: drain::DrainWatch,
}

impl NodeQuicPort {
    /// Creates the port for thread `number`; `None` if the listener takes no calls over QUIC, or has no
    /// socket for the thread.
    pub(crate) fn of_listener(
        listener: &GatewayListener,
        number: usize,
        drain: &drain::DrainWatch,
    ) -> Option<io::Result<Self>> {
        let (Some(quic), Some(ListenerTls::Nodes(tls))) = (&listener.node_quic, &listener.tls)
        else {
            return None;
        };
        let socket = quic.sockets.get(number)?.try_clone();
        Some(socket.map(|socket| Self {
            socket,
            routing: quic.routing,
            thread: number,
            tls: tls.clone(),
            drain: drain.clone(),
        }))
    }
}

/// Opens the endpoint of a thread, for calls in both directions.
///
/// # Errors
/// When the socket cannot be used.
pub(crate) fn open_endpoint(port: &NodeQuicPort) -> io::Result<Endpoint> {
    let socket = port.socket.try_clone()?;
    udp::request_buffers(&socket);
    let mut config = port.tls.borrow().endpoint_config();
    let (routing, thread) = (port.routing, port.thread);
    config.cid_generator(move || routing.cid_generator(thread));
    let server = port.tls.borrow().quic_server_config().clone();
    quic::open_endpoint(config, Some(server), socket)
}

/// Serves calls of other nodes until the drain begins. Open calls go on.
pub(crate) async fn serve_calls(
    context: Rc<ListenContext>,
    mut port: NodeQuicPort,
    endpoint: Endpoint,
) -> io::Result<()> {
    let peers = Rc::<PeerTable>::default();
    let worker = context.worker.clone();
    let trust = port.tls.borrow_and_update().credentials().trust().clone();
    let refusals = context.worker.totals.node_refusals.clone();
    let server = CallServer::with_refusals(trust, refusals, move |call| {
        answer_call(worker.clone(), peers.clone(), call)
    });
    let accept = async {
        while let Some(incoming) = endpoint.accept().await {
            // One task for each connection: a slow handshake delays no other.
            tokio::task::spawn_local(Rc::clone(&server).serve_connection(incoming));
        }
    };
    let follow = async {
        while port.tls.changed().await.is_ok() {
            let tls = port.tls.borrow_and_update().clone();
            endpoint.set_server_config(Some(tls.quic_server_config().clone()));
            server.set_trust(tls.credentials().trust().clone());
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = accept => {}
        () = follow => {}
        () = port.drain.signaled() => {}
    }
    // New calls are reset as not run, so that their nodes try others.
    context
        .worker
        .spawn(async move { server.drain_calls().await });
    Ok(())
}

/// Closes the connections of a thread, in both directions.
pub(crate) async fn close_endpoint(endpoint: &Endpoint) {
    endpoint.close(close_code::STOPPING, b"the node is stopping");
    let _ = tokio::time::timeout(CLOSE_GRACE, endpoint.wait_idle()).await;
}

/// Other nodes with their last address: their peer information is formatted once.
#[derive(Default)]
struct PeerTable(RefCell<HashMap<SpiffeId, Rc<PeerInfo>>>);

impl PeerTable {
    fn peer_of(&self, identity: &PeerIdentity, addr: SocketAddr) -> Rc<PeerInfo> {
        let (mut peers, addr) = (self.0.borrow_mut(), addr.ip().to_canonical());
        let known = peers.get(&identity.id).filter(|peer| peer.addr == addr);
        if let Some(peer) = known {
            return peer.clone();
        }
        let peer = PeerInfo::new(ListenerZone::Node, addr, "https");
        // The trust admits nodes alone. Without a name, the peer may call nothing.
        let _ = identity.node_name().map(|name| peer.node.set(name));
        let peer = Rc::new(peer);
        peers.insert(identity.id.clone(), peer.clone());
        peer
    }
}

fn answer_call(
    worker: Rc<WorkerContext>,
    peers: Rc<PeerTable>,
    call: ServedCall,
) -> impl Future<Output = Response<ResponseContent>> {
    let counted = worker.count_task();
    async move {
        let _counted = counted; // the drain waits for the response
        let peer = peers.peer_of(&call.peer, call.remote_addr);
        let request = call.request.map(|body| CallerBody::Quic(Box::new(body)));
        let routed = pipeline::route_request(&worker, &peer, request);
        declare_refusal(pipeline::answer_request(routed).await)
    }
}

/// Marks a response that the platform made, which the call's opening declares.
fn declare_refusal(mut response: Response<ResponseContent>) -> Response<ResponseContent> {
    let refusal = response.extensions().get::<PlatformRefusal>();
    if let Some(reason) = refusal.map(|refusal| refusal.0) {
        let status = response.status().as_u16();
        response.extensions_mut().insert(ResponseOpening {
            is_platform: true,
            status,
            reason_number: reason as u16,
            body_length: UNKNOWN_LENGTH, // the sender replaces it
        });
    }
    response
}
