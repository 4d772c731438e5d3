//! Two watchdogs that may talk, `a` to `b`: the test is the node of both, and the gateway that is
//! not asked.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream as Blocking;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_ca::Authority;
use nearpath_testkit::{free_addr, within};
use nearpath_types::frames::{
    self, CallTally, CalleeEntry, CalleePeer, HandshakeMessage, WatchdogFrame,
};
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_types::{FunctionId, InstanceId, InstanceLocality, SpiffeId};
use nearpath_wire::identity::Credentials;
use nearpath_wire::quic::config;
use nearpath_wire::zero_rtt::mint::WorkerHandshake;
use nearpath_wire::zero_rtt::{Provision, SessionEntry, TokenKey, WorkerSessions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UdpSocket, UnixStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::contract::node::{
    HOUR, TRUST_DOMAIN, issue_credentials, issue_credentials_for, start_serving_quic,
};
use crate::contract::support::{WatchdogProcess, full, send, start_tenant, text};

pub(crate) fn function_id(name: &str) -> FunctionId {
    name.parse().unwrap()
}

/// Returns the identity of `function`'s instance, with the functions that may call it.
pub(crate) fn new_provision(
    authority: &Authority,
    number: u64,
    function: &str,
    callers: &[&str],
) -> Provision {
    let spiffe = SpiffeId::for_instance(TRUST_DOMAIN, function_id(function), InstanceId(number));
    Provision {
        credentials: issue_credentials(authority, spiffe, &format!("i{number}.{TRUST_DOMAIN}")),
        authorities: vec![authority.certificate().clone()],
        callers: callers.iter().map(|caller| function_id(caller)).collect(),
        revoked: Vec::new(),
        foreign: Vec::new(),
        token_key: TokenKey([number as u8; 32]),
        sessions: Vec::new(),
    }
}

/// `a`, whose calls are picked up, and `b`, with whom it may talk.
pub(crate) struct WatchdogPair {
    pub(crate) a: WatchdogProcess,
    pub(crate) b: WatchdogProcess,
    pub(crate) outbound_addr: SocketAddr,
    pub(crate) node_of_a: UnixStream,
    pub(crate) node_of_b: UnixStream,
    pub(crate) authority: Authority,
    pub(crate) provision_of_a: Provision,
    pub(crate) provision_of_b: Provision,
    /// Calls that reached the gateway.
    pub(crate) gateway_calls: mpsc::UnboundedReceiver<String>,
}

impl WatchdogPair {
    pub(crate) async fn new(b: SocketAddr, callers: &[&str], more: &[(&str, &str)]) -> Self {
        Self::with_lifetime(b, callers, more, HOUR).await
    }

    /// The certificate of `a` is good for so long.
    pub(crate) async fn with_lifetime(
        b: SocketAddr,
        callers: &[&str],
        more: &[(&str, &str)],
        lifetime: Duration,
    ) -> Self {
        let authority = Authority::new(TRUST_DOMAIN, SystemTime::now(), HOUR).unwrap();
        let (mut provision_of_a, provision_of_b) = (
            new_provision(&authority, 1, "a", &[]),
            new_provision(&authority, 2, "b", callers),
        );
        let Credentials { id: who, name, .. } = &provision_of_a.credentials;
        provision_of_a.credentials = issue_credentials_for(&authority, who.clone(), name, lifetime);
        let (requested, gateway_calls) = mpsc::unbounded_channel();
        let gateway = start_tenant(move |request: Request<Incoming>| {
            let limit = request
                .headers()
                .get("x-timeout")
                .map_or("", |limit| limit.to_str().unwrap());
            requested
                .send(
                    format!("{} {limit}", request.uri().path())
                        .trim()
                        .to_owned(),
                )
                .unwrap();
            async { Response::new(full("by the gateway")) }
        });
        let (gateway, outbound_addr, url) = (
            gateway.await.to_string(),
            free_addr(),
            format!("http://{b}"),
        );
        let (outbound_text, base) = (
            outbound_addr.to_string(),
            [("mode", "http"), ("fprocess", "sleep 1000")],
        );
        let outbound_variables = [
            ("NEARPATH_PICKUP", &*outbound_text),
            ("NEARPATH_GATEWAY", &*gateway),
        ];
        let own = [("upstream_url", &*url), ("NEARPATH_EIP", "127.0.0.1")]; // it has to get ready, but is never called
        let (a, node_of_a) = start_serving_quic(
            &[&base[..], &own, &outbound_variables].concat(),
            &provision_of_a.encode(),
        );
        let (b, node_of_b) = start_serving_quic(
            &[&base[..], &[("upstream_url", &*url)], more].concat(),
            &provision_of_b.encode(),
        );
        let (node_of_a, node_of_b) = (open_stream(node_of_a), open_stream(node_of_b));
        Self {
            a,
            b,
            outbound_addr,
            node_of_a,
            node_of_b,
            authority,
            provision_of_a,
            provision_of_b,
            gateway_calls,
        }
    }

    /// Sends the address of `b` to the watchdog `a`.
    pub(crate) async fn send_callee(&mut self, addr: SocketAddr) {
        let name = self.provision_of_b.credentials.name.clone();
        let peers = vec![CalleePeer {
            name,
            addr,
            locality: InstanceLocality::SameNode,
            leaving: false,
        }];
        let callee = CalleeEntry {
            function: function_id("b"),
            aliases: vec![function_id("other")],
            zero_rtt: ZeroRttPolicy::Always,
            peers,
        };
        self.node_of_a
            .write_all(&frames::callees_frame(&[callee]))
            .await
            .unwrap();
    }

    /// Gives `a` another certificate.
    pub(crate) async fn renew_certificate(&mut self) {
        let Credentials { id: who, name, .. } = &self.provision_of_a.credentials;
        self.provision_of_a.credentials = issue_credentials(&self.authority, who.clone(), name);
        self.node_of_a
            .write_all(&self.provision_of_a.encode())
            .await
            .unwrap();
    }

    pub(crate) async fn read_frame(&mut self) -> WatchdogFrame {
        let length = self.node_of_a.read_u32_le().await.unwrap();
        let mut frame = vec![0; length as usize];
        self.node_of_a.read_exact(&mut frame).await.unwrap();
        WatchdogFrame::read(&frame).unwrap()
    }

    pub(crate) async fn read_handshake(&mut self) -> HandshakeMessage {
        loop {
            if let WatchdogFrame::Handshake(half) = within(self.read_frame()).await {
                return half; // what is counted may come in between
            }
        }
    }

    /// Reads counters until `ended` calls are counted.
    pub(crate) async fn read_tally(&mut self, ended: u32) -> CallTally {
        let mut sum = CallTally::for_callee(function_id("b"));
        while sum.ended < ended || sum.open > 0 {
            let WatchdogFrame::Tallies(all) = within(self.read_frame()).await else {
                panic!()
            };
            let [more] = &all[..] else { panic!("{all:?}") };
            (sum.ended, sum.failed, sum.open) =
                (sum.ended + more.ended, sum.failed + more.failed, more.open);
        }
        sum
    }

    /// The callee's half, as the node has it; `b` learns of it.
    pub(crate) async fn mint_session(&mut self) {
        let entries = self.answer_handshake().await;
        let frame = Provision {
            sessions: entries,
            ..self.provision_of_b.clone()
        }
        .encode();
        self.node_of_b.write_all(&frame).await.unwrap();
    }

    /// The callee's half; what `b` has to know of it.
    pub(crate) async fn answer_handshake(&mut self) -> Vec<SessionEntry> {
        let register = Arc::new(WorkerSessions::new(None));
        let Provision {
            credentials,
            token_key: key,
            ..
        } = &self.provision_of_b;
        let trust = self.provision_of_b.worker_trust().unwrap();
        let worker =
            config::worker_config(credentials, &trust, Arc::clone(&register), key).unwrap();
        let mut worker = WorkerHandshake::new(
            Arc::new(worker),
            (Ipv4Addr::LOCALHOST, 9).into(),
            Instant::now(),
        );
        while !worker.is_done() {
            let HandshakeMessage { callee, datagrams } = self.read_handshake().await;
            let datagrams = worker.exchange_datagrams(&datagrams);
            self.node_of_a
                .write_all(&frames::handshake_frame(&HandshakeMessage {
                    callee,
                    datagrams,
                }))
                .await
                .unwrap();
        }
        register.drain_entries()
    }

    /// Refuses the handshake, so that there is no session.
    pub(crate) async fn refuse_session(&mut self) {
        let callee = self.read_handshake().await.callee;
        self.node_of_a
            .write_all(&frames::handshake_frame(&HandshakeMessage {
                callee,
                datagrams: Vec::new(),
            }))
            .await
            .unwrap();
    }

    pub(crate) async fn call(&self, path: &str, body: &str) -> Response<Incoming> {
        let request = Request::post(path)
            .header("x-nearpath-path", "tell")
            .body(full(body))
            .unwrap();
        send(self.outbound_addr, request).await.unwrap()
    }
}

pub(crate) fn open_stream(node: Blocking) -> UnixStream {
    node.set_nonblocking(true).unwrap();
    UnixStream::from_std(node).unwrap()
}

pub(crate) async fn echo(
    request: Request<Incoming>,
) -> Response<http_body_util::Full<bytes::Bytes>> {
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Response::builder()
        .header("x-path", path)
        .body(http_body_util::Full::new(body))
        .unwrap()
}

/// The path that it took, and what was said.
pub(crate) async fn path_and_text(response: Response<Incoming>) -> (String, u16, String) {
    let path = path_header(&response).to_owned();
    let (status, said) = text(response).await;
    (path, status, said)
}

pub(crate) fn quic_reply(said: &str) -> (String, u16, String) {
    ("quic".to_owned(), 200, said.to_owned())
}

pub(crate) fn path_header(response: &Response<Incoming>) -> &str {
    response
        .headers()
        .get("x-nearpath-path")
        .map_or("none", |path| path.to_str().unwrap())
}

/// Forwards datagrams to the address in `to`, and back once `open` is notified.
pub(crate) async fn start_one_way_relay(
    mut to: watch::Receiver<Option<SocketAddr>>,
    open: Arc<Notify>,
) -> SocketAddr {
    let (front, back) = (
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
    );
    let addr = front.local_addr().unwrap();
    let (front, back) = (Arc::new(front), Arc::new(back));
    let (caller_sender, caller) = oneshot::channel();
    let (there, here) = (Arc::clone(&front), Arc::clone(&back));
    tokio::spawn(async move {
        let (mut datagram, mut tell) = (vec![0; 2048], Some(caller_sender));
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

/// Reports each call, and responds to `/slow` once `go` is notified.
pub(crate) fn slow_tenant(
    reached: mpsc::UnboundedSender<()>,
    go: Arc<Notify>,
) -> impl Fn(Request<Incoming>) -> BoxedResponse + Clone {
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

pub(crate) type BoxedResponse =
    std::pin::Pin<Box<dyn Future<Output = Response<http_body_util::Full<bytes::Bytes>>> + Send>>;
