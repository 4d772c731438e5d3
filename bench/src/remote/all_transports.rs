//! A server of the bench that all transports reach, like a worker, and threads for such servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::mpsc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use nearpath_testkit::lab::LabNode;
use nearpath_wire::mtls::MtlsAcceptor;
use nearpath_wire::quic::{QuicWorker, ServedCall};
use nearpath_wire::zero_rtt::Provision;
use tokio::task::LocalSet;

use super::caller::CalleeAddress;
use super::port::{self, PortProtocol};
use super::{BenchError, tls};

/// Port of the watchdog, and of QUIC over UDP.
const WORKER_PORT: u16 = 8001;
/// Port for callers without a certificate.
const SERVER_TLS_PORT: u16 = 8002;

/// Callback for the ready server.
pub(super) type ReadyCallback = Box<dyn FnOnce()>;

/// Returns the address of the server in a node with this address: a node has at most one server.
pub(crate) fn callee_address(addr: IpAddr, provision: &Provision) -> CalleeAddress {
    let at = |port| SocketAddr::new(addr, port);
    let name = provision.credentials.name.clone();
    CalleeAddress {
        worker: at(WORKER_PORT),
        server: at(SERVER_TLS_PORT),
        name,
    }
}

/// Serves forever: `http` for TCP with or without TLS, `quic` for QUIC. Must run inside a
/// `LocalSet`.
pub(super) async fn serve_all<H, F, Q, G>(
    provision: Provision,
    http: H,
    quic: Q,
    ready: ReadyCallback,
) -> Result<(), BenchError>
where
    H: Fn(Request<Incoming>) -> F + Clone + 'static,
    F: Future<Output = Response<Full<Bytes>>> + 'static,
    Q: Fn(ServedCall) -> G + 'static,
    G: Future<Output = Response<Full<Bytes>>> + 'static,
{
    let all = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let (entrance, nameless) = (
        Rc::new(MtlsAcceptor::new(true)),
        PortProtocol::Nameless(tls::callee_config(&provision)?.into()),
    );
    entrance.apply_provision(&provision)?;
    let worker = port::serve_port(
        port::listen_on(all(WORKER_PORT))?,
        PortProtocol::Worker(entrance),
        http.clone(),
    );
    let server = port::serve_port(port::listen_on(all(SERVER_TLS_PORT))?, nameless, http);
    let socket = UdpSocket::bind(all(WORKER_PORT))?;
    // tokio takes over the socket and expects it so.
    socket.set_nonblocking(true)?;
    let _quic = QuicWorker::start(socket, provision, quic)?;
    ready();
    tokio::join!(worker, server);
    Ok(())
}

/// Runs `work` on a separate thread in a node until the process exits. Returns the thread id when
/// the server is ready.
pub(super) fn spawn_in_node<W>(node: &LabNode, name: &str, work: W) -> Result<u32, BenchError>
where
    W: AsyncFnOnce(ReadyCallback) -> Result<(), BenchError> + Send + 'static,
{
    let (ready_sender, ready_receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name.to_owned());
    // Created inside the namespace, which the thread inherits.
    node.enter(move || thread.spawn(move || run_work(work, &ready_sender)))?;
    ready_receiver
        .recv()
        .map_err(|_| format!("{name} exited before it was ready"))?
        .map_err(BenchError::from)
}

fn run_work<W>(work: W, ready_sender: &mpsc::Sender<Result<u32, String>>)
where
    W: AsyncFnOnce(ReadyCallback) -> Result<(), BenchError>,
{
    let id = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs();
    let ready = ready_sender.clone();
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::from);
    let done = done.and_then(|runtime| {
        LocalSet::new().block_on(&runtime, work(Box::new(move || drop(ready.send(Ok(id))))))
    });
    // A send after readiness has no receiver any more, so late errors are lost; the calls fail
    // then.
    if let Err(error) = done {
        let _ = ready_sender.send(Err(error.to_string()));
    }
}
