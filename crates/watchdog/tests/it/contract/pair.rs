//! Two watchdogs that may talk, `a` to `b`: the test is the node of both, and the gateway that is not asked.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream as Blocking;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_ca::Authority;
use nearpath_testkit::{free_addr, within};
use nearpath_types::frames::{self, Callee, FromWatchdog, Handshake, Peer, Tally};
use nearpath_types::policy::ZeroRtt;
use nearpath_types::{FunctionId, InstanceId, Locality, SpiffeId};
use nearpath_wire::early::mint::Worker;
use nearpath_wire::early::{Entry, Provision, Register, TokenKey};
use nearpath_wire::identity::Credentials;
use nearpath_wire::quic::config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UdpSocket, UnixStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::contract::node::{DOMAIN, HOUR, credentials, credentials_for, listening};
use crate::contract::support::{Watchdog, full, send, tenant, text};

pub(crate) fn id(name: &str) -> FunctionId {
    name.parse().unwrap()
}

/// Who `function`'s instance is, and who may call it.
pub(crate) fn provision(authority: &Authority, number: u64, function: &str, callers: &[&str]) -> Provision {
    let spiffe = SpiffeId::instance(DOMAIN, id(function), InstanceId(number));
    Provision {
        credentials: credentials(authority, spiffe, &format!("i{number}.{DOMAIN}")),
        authorities: vec![authority.certificate().clone()],
        callers: callers.iter().map(|caller| id(caller)).collect(),
        revoked: Vec::new(),
        key: TokenKey([number as u8; 32]),
        entries: Vec::new(),
    }
}

/// `a`, whose calls are picked up, and `b`, with whom it may talk.
pub(crate) struct Pair {
    pub(crate) a: Watchdog,
    pub(crate) b: Watchdog,
    pub(crate) pickup: SocketAddr,
    pub(crate) node_of_a: UnixStream,
    pub(crate) node_of_b: UnixStream,
    pub(crate) authority: Authority,
    pub(crate) provision_of_a: Provision,
    pub(crate) provision_of_b: Provision,
    /// What the gateway was asked for.
    pub(crate) forwarded: mpsc::UnboundedReceiver<String>,
}

impl Pair {
    pub(crate) async fn new(b: SocketAddr, callers: &[&str], more: &[(&str, &str)]) -> Self {
        Self::lasting(b, callers, more, HOUR).await
    }

    /// The certificate of `a` is good for so long.
    pub(crate) async fn lasting(b: SocketAddr, callers: &[&str], more: &[(&str, &str)], lifetime: Duration) -> Self {
        let authority = Authority::new(DOMAIN, SystemTime::now(), HOUR).unwrap();
        let (mut provision_of_a, provision_of_b) =
            (provision(&authority, 1, "a", &[]), provision(&authority, 2, "b", callers));
        let Credentials { id: who, name, .. } = &provision_of_a.credentials;
        provision_of_a.credentials = credentials_for(&authority, who.clone(), name, lifetime);
        let (asked, forwarded) = mpsc::unbounded_channel();
        let gateway = tenant(move |request: Request<Incoming>| {
            let limit = request.headers().get("x-timeout").map_or("", |limit| limit.to_str().unwrap());
            asked.send(format!("{} {limit}", request.uri().path()).trim().to_owned()).unwrap();
            async { Response::new(full("by the gateway")) }
        });
        let (gateway, pickup, url) = (gateway.await.to_string(), free_addr(), format!("http://{b}"));
        let (pickup_at, base) = (pickup.to_string(), [("mode", "http"), ("fprocess", "sleep 1000")]);
        let ways = [("NEARPATH_PICKUP", &*pickup_at), ("NEARPATH_GATEWAY", &*gateway)];
        let own = [("upstream_url", &*url), ("NEARPATH_EIP", "127.0.0.1")]; // it has to get ready; nobody calls it
        let (a, node_of_a) = listening(&[&base[..], &own, &ways].concat(), &provision_of_a.write());
        let (b, node_of_b) =
            listening(&[&base[..], &[("upstream_url", &*url)], more].concat(), &provision_of_b.write());
        let (node_of_a, node_of_b) = (open(node_of_a), open(node_of_b));
        Self { a, b, pickup, node_of_a, node_of_b, authority, provision_of_a, provision_of_b, forwarded }
    }

    /// Tells `a` where `b` is.
    pub(crate) async fn introduce(&mut self, addr: SocketAddr) {
        let name = self.provision_of_b.credentials.name.clone();
        let peers = vec![Peer { name, addr, locality: Locality::SameNode, leaving: false }];
        let callee = Callee { function: id("b"), aliases: vec![id("other")], zero_rtt: ZeroRtt::Always, peers };
        self.node_of_a.write_all(&frames::callees(&[callee])).await.unwrap();
    }

    /// Gives `a` another certificate.
    pub(crate) async fn renew(&mut self) {
        let Credentials { id: who, name, .. } = &self.provision_of_a.credentials;
        self.provision_of_a.credentials = credentials(&self.authority, who.clone(), name);
        self.node_of_a.write_all(&self.provision_of_a.write()).await.unwrap();
    }

    pub(crate) async fn heard(&mut self) -> FromWatchdog {
        let length = self.node_of_a.read_u32_le().await.unwrap();
        let mut frame = vec![0; length as usize];
        self.node_of_a.read_exact(&mut frame).await.unwrap();
        FromWatchdog::read(&frame).unwrap()
    }

    pub(crate) async fn half(&mut self) -> Handshake {
        loop {
            if let FromWatchdog::Handshake(half) = within(self.heard()).await {
                return half; // what is counted may come in between
            }
        }
    }

    /// What it counted until now is `ended` calls.
    pub(crate) async fn tally(&mut self, ended: u32) -> Tally {
        let mut sum = Tally::of(id("b"));
        while sum.ended < ended || sum.open > 0 {
            let FromWatchdog::Tallies(all) = within(self.heard()).await else { panic!() };
            let [more] = &all[..] else { panic!("{all:?}") };
            (sum.ended, sum.failed, sum.open) = (sum.ended + more.ended, sum.failed + more.failed, more.open);
        }
        sum
    }

    /// The callee's half, as the node has it; `b` learns of it.
    pub(crate) async fn mint(&mut self) {
        let entries = self.answer().await;
        let frame = Provision { entries, ..self.provision_of_b.clone() }.write();
        self.node_of_b.write_all(&frame).await.unwrap();
    }

    /// The callee's half; what `b` has to know of it.
    pub(crate) async fn answer(&mut self) -> Vec<Entry> {
        let register = Arc::new(Register::new(None));
        let Provision { credentials, key, .. } = &self.provision_of_b;
        let trust = self.provision_of_b.trust().unwrap();
        let worker = config::worker(credentials, &trust, Arc::clone(&register), key).unwrap();
        let mut worker = Worker::new(Arc::new(worker), (Ipv4Addr::LOCALHOST, 9).into(), Instant::now());
        while !worker.is_done() {
            let Handshake { callee, datagrams } = self.half().await;
            let datagrams = worker.step(&datagrams);
            self.node_of_a.write_all(&frames::handshake(&Handshake { callee, datagrams })).await.unwrap();
        }
        register.drain()
    }

    /// Says that there is no session to be had.
    pub(crate) async fn mint_nothing(&mut self) {
        let callee = self.half().await.callee;
        self.node_of_a.write_all(&frames::handshake(&Handshake { callee, datagrams: Vec::new() })).await.unwrap();
    }

    pub(crate) async fn call(&self, path: &str, body: &str) -> Response<Incoming> {
        let request = Request::post(path).header("x-nearpath-path", "tell").body(full(body)).unwrap();
        send(self.pickup, request).await.unwrap()
    }
}

pub(crate) fn open(node: Blocking) -> UnixStream {
    node.set_nonblocking(true).unwrap();
    UnixStream::from_std(node).unwrap()
}

pub(crate) async fn echo(request: Request<Incoming>) -> Response<http_body_util::Full<bytes::Bytes>> {
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Response::builder().header("x-path", path).body(http_body_util::Full::new(body)).unwrap()
}

/// The path that it took, and what was said.
pub(crate) async fn told(response: Response<Incoming>) -> (String, u16, String) {
    let path = path(&response).to_owned();
    let (status, said) = text(response).await;
    (path, status, said)
}

pub(crate) fn by_quic(said: &str) -> (String, u16, String) {
    ("quic".to_owned(), 200, said.to_owned())
}

pub(crate) fn path(response: &Response<Incoming>) -> &str {
    response.headers().get("x-nearpath-path").map_or("none", |path| path.to_str().unwrap())
}

/// Carries datagrams to where `to` says, and back once it is let.
pub(crate) async fn one_way(mut to: watch::Receiver<Option<SocketAddr>>, open: Arc<Notify>) -> SocketAddr {
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let addr = front.local_addr().unwrap();
    let (front, back) = (Arc::new(front), Arc::new(back));
    let (tell, caller) = oneshot::channel();
    let (there, here) = (Arc::clone(&front), Arc::clone(&back));
    tokio::spawn(async move {
        let (mut datagram, mut tell) = (vec![0; 2048], Some(tell));
        while let Ok((length, from)) = there.recv_from(&mut datagram).await {
            if let Some(tell) = tell.take() {
                tell.send(from).unwrap();
            }
            let to = to.wait_for(Option::is_some).await.unwrap().unwrap();
            here.send_to(&datagram[..length], to).await.unwrap();
        }
    });
    tokio::spawn(async move {
        let (mut datagram, caller) = (vec![0; 2048], caller.await.unwrap());
        open.notified().await;
        while let Ok(length) = back.recv(&mut datagram).await {
            front.send_to(&datagram[..length], caller).await.unwrap();
        }
    });
    addr
}

/// Says that it was reached, and answers `/slow` when it is let.
pub(crate) fn slow(
    reached: mpsc::UnboundedSender<()>,
    go: Arc<Notify>,
) -> impl Fn(Request<Incoming>) -> Answering + Clone {
    move |request| {
        let _ = reached.send(());
        let go = Arc::clone(&go);
        Box::pin(async move {
            if request.uri().path() == "/slow" {
                go.notified().await;
            }
            Response::new(full("done"))
        })
    }
}

pub(crate) type Answering =
    std::pin::Pin<Box<dyn Future<Output = Response<http_body_util::Full<bytes::Bytes>>> + Send>>;
