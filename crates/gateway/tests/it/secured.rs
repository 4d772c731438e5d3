//! Calls to instances over TLS: which connections they share, and with whom.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use http::{Request, Response};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use nearpath_ca::Authority;
use nearpath_testkit::within;
use nearpath_types::policy::Transport;
use nearpath_types::{FunctionRoute, Instance, InstanceId, InstanceState, Policy, Snapshot, SpiffeId};
use nearpath_wire::early::{Provision, TokenKey};
use nearpath_wire::identity::{Credentials, Request as KeyRequest, Trust};
use nearpath_wire::mutual::{Begun, Entrance, Opening};
use nearpath_wire::quic::Caller;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::house::{self, Answer, House, TestBody, full};

const DOMAIN: &str = "test.nearpath";
const NAME: &str = "i1.test.nearpath";
const TRANSPORTS: [Transport; 3] = [Transport::Tls13, Transport::Tcp, Transport::Tls12];
const LIMIT: Duration = Duration::from_secs(20);

/// An authority, and the instance that it knows.
struct Site {
    authority: Authority,
    trust: Trust,
    at: SocketAddr,
}

fn credentials(authority: &Authority, id: SpiffeId, name: &str) -> Credentials {
    let (request, now) = (KeyRequest::new().unwrap(), SystemTime::now());
    let issued = authority.issue(request.csr(), &id, name, now, Duration::from_secs(3600)).unwrap();
    request.complete(id, name.to_owned(), issued)
}

impl Site {
    /// The instance says of each call on which connection it came, and what that is.
    async fn new() -> Self {
        let authority = authority();
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()]).unwrap();
        let at = instance(&authority, &[&authority]).await;
        Self { authority, trust, at }
    }

    fn caller(&self) -> Caller {
        self.caller_of(&self.authority)
    }

    /// One that knows the instance, with a certificate of this authority.
    fn caller_of(&self, authority: &Authority) -> Caller {
        let credentials = credentials(authority, SpiffeId::gateway(DOMAIN, "node-a"), "gateway");
        Caller::new(&credentials, self.trust.clone(), &Arc::default()).unwrap()
    }

    /// A function for each transport, named after it, with an instance of its own at the same address.
    fn publish(&self, house: &House) {
        self.publish_all(house, &[self.at]);
    }

    /// The same with an instance at each of these.
    fn publish_all(&self, house: &House, all: &[SocketAddr]) {
        self.publish_named(house, all, Some(NAME), Duration::from_millis(200)); // so long one that cannot be reached is tried
    }

    fn publish_named(&self, house: &House, all: &[SocketAddr], name: Option<&str>, cold_timeout: Duration) {
        let quic = name.map(Into::into);
        let functions = TRANSPORTS.iter().zip(1u64..).map(|(transport, function)| {
            let (name, policy) = (transport.to_string(), Policy { cold_timeout, ..Policy::default() });
            let instances = all.iter().zip(0..).map(|(at, number)| {
                let ready = house::instance(*at, InstanceState::Ready);
                let id = InstanceId(function * 100 + number);
                Instance { id, quic: quic.clone(), transport: *transport, ..ready }
            });
            FunctionRoute { instances: instances.collect(), ..house::route(&name, policy, all) }
        });
        house.gateway.publish(&Snapshot { version: 1, functions: functions.collect() });
    }
}

fn authority() -> Authority {
    Authority::new(DOMAIN, SystemTime::now(), Duration::from_secs(3600)).unwrap()
}

/// An instance that `own` has signed for, and that takes callers of all `authorities`.
async fn instance(own: &Authority, authorities: &[&Authority]) -> SocketAddr {
    let id = SpiffeId::instance(DOMAIN, "echo".parse().unwrap(), InstanceId(1));
    let provision = Provision {
        credentials: credentials(own, id, NAME),
        authorities: authorities.iter().map(|authority| authority.certificate().clone()).collect(),
        callers: Vec::new(),
        revoked: Vec::new(),
        key: TokenKey([7; 32]),
        entries: Vec::new(),
    };
    let entrance = Arc::new(Entrance::new(true));
    entrance.provision(&provision).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(accept(listener, entrance));
    at
}

async fn accept(listener: TcpListener, entrance: Arc<Entrance>) {
    let number = AtomicUsize::new(0);
    while let Ok((stream, from)) = listener.accept().await {
        let number = number.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::spawn(connection(stream, from, entrance.clone(), number));
    }
}

async fn connection(stream: TcpStream, from: SocketAddr, entrance: Arc<Entrance>, number: usize) {
    let Ok(begun) = Begun::look(stream).await else { return };
    if begun.opening() == Opening::Plain {
        return serve(begun, format!("plain {number}")).await;
    }
    let Ok((stream, guest)) = entrance.accept(begun, from, LIMIT).await else { return };
    let peer = guest.admit(SystemTime::now()).unwrap();
    let said = format!("{:?} of {} {number}", stream.get_ref().1.protocol_version().unwrap(), peer.name);
    serve(stream, said).await;
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, said: String) {
    let service = service_fn(|_| {
        let answer = Response::new(full(said.clone()));
        async { Ok::<_, Infallible>(answer) }
    });
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// Every call on the same connection is answered by the same thread of the gateway.
async fn ask(sender: &mut SendRequest<TestBody>, transport: Transport, kind: &str) -> Answer {
    let target = format!("http://shop.example/function/{transport}");
    let request = Request::get(target).header("x-nearpath-path", "").header("content-type", kind);
    let answer = within(sender.send_request(request.body(full("")).unwrap())).await.unwrap();
    house::finish(answer).await
}

async fn said(sender: &mut SendRequest<TestBody>, transport: Transport) -> (String, String) {
    let answer = ask(sender, transport, "text/plain").await;
    (answer.body.clone(), answer.header("x-nearpath-path").to_owned())
}

fn pair(body: &str, path: &str) -> (String, String) {
    (body.to_owned(), path.to_owned())
}

#[tokio::test]
async fn connections_are_kept_and_never_serve_calls_of_another_kind() {
    let site = Site::new().await;
    let (_tell, caller) = watch::channel(site.caller());
    let house = House::named(caller);
    let mut sender = house::h2(house.public).await;
    let over_tls = |body| pair(body, "tls; not_nearer=no_domain");
    site.publish(&house);
    let wanted = [
        over_tls("TLSv1_3 of gateway 1"),
        pair("plain 2", "http; not_nearer=no_domain"),
        over_tls("TLSv1_2 of gateway 3"),
    ];
    for _ in 0..3 {
        for (transport, wanted) in TRANSPORTS.into_iter().zip(&wanted) {
            assert_eq!(said(&mut sender, transport).await, *wanted, "{transport}");
        }
    }
}

#[tokio::test]
async fn grpc_shares_one_connection_over_tls() {
    let site = Site::new().await;
    let (_tell, caller) = watch::channel(site.caller());
    let house = House::named(caller);
    site.publish(&house);
    let mut sender = house::h2(house.public).await;
    for _ in 0..3 {
        assert_eq!(ask(&mut sender, Transport::Tls13, "application/grpc").await.body, "TLSv1_3 of gateway 1");
    }
}

#[tokio::test]
async fn a_renewed_caller_uses_no_connection_of_the_old_one() {
    let site = Site::new().await;
    let (tell, caller) = watch::channel(site.caller());
    let house = House::named(caller);
    site.publish(&house);
    let mut sender = house::h2(house.public).await;
    for _ in 0..2 {
        assert_eq!(said(&mut sender, Transport::Tls13).await.0, "TLSv1_3 of gateway 1");
    }
    tell.send_replace(site.caller());
    nearpath_testkit::eventually("a new connection", async || {
        said(&mut sender, Transport::Tls13).await.0 == "TLSv1_3 of gateway 2"
    })
    .await;
    let trust = site.trust.without(["i9".to_owned()].into());
    tell.send_modify(|caller| *caller = caller.trusting(trust.clone()));
    assert_eq!(
        said(&mut sender, Transport::Tls13).await.0,
        "TLSv1_3 of gateway 2",
        "somebody else was taken back: nothing changes"
    );
}

#[tokio::test]
async fn an_instance_that_is_taken_back_is_not_called() {
    let site = Site::new().await;
    let (_tell, caller) = watch::channel(site.caller().trusting(site.trust.without([NAME.to_owned()].into())));
    let house = House::named(caller);
    site.publish(&house);
    let answer = ask(&mut house::h2(house.public).await, Transport::Tls13, "text/plain").await;
    assert!(answer.status >= 500 && answer.body.contains("was revoked"), "{answer:?}");
}

/// In TLS 1.3 the gateway has sent its request before it knows.
#[tokio::test]
async fn who_does_not_accept_the_gateway_says_so_and_has_run_nothing() {
    let (site, other) = (Site::new().await, authority());
    let (_tell, caller) = watch::channel(site.caller_of(&other));
    let house = House::named(caller);
    site.publish(&house);
    let mut sender = house::h2(house.public).await;
    for (transport, kind) in [
        (Transport::Tls13, "text/plain"),
        (Transport::Tls12, "text/plain"),
        (Transport::Tls13, "application/grpc"),
        (Transport::Tls12, "application/grpc"),
    ] {
        let answer = ask(&mut sender, transport, kind).await;
        assert_eq!(answer.reason(), "connect_failed", "{transport} {kind} {answer:?}");
        let told = format!("{}{}", answer.body, answer.header("grpc-message"));
        assert!(told.contains("DecryptError") || told.contains("UnknownCA"), "{answer:?}");
    }
    let request = Request::post("http://shop.example/function/tls13").body(full("a body"));
    let answer = house::finish(within(sender.send_request(request.unwrap())).await.unwrap()).await;
    assert_eq!((answer.status, answer.reason()), (502, "connect_failed"), "{answer:?}");
}

#[tokio::test]
async fn another_instance_that_accepts_the_gateway_gets_the_call() {
    let (site, other) = (Site::new().await, authority());
    let (_tell, caller) = watch::channel(site.caller_of(&other));
    let house = House::named(caller);
    let knowing = instance(&site.authority, &[&site.authority, &other]).await;
    site.publish_all(&house, &[site.at, knowing]);
    let mut sender = house::h2(house.public).await;
    for round in 0..10 {
        for (transport, kind) in [(Transport::Tls13, "text/plain"), (Transport::Tls13, "application/grpc")] {
            let answer = ask(&mut sender, transport, kind).await;
            assert!(answer.body.starts_with("TLSv1_3 of gateway"), "{round} {kind} {answer:?}");
        }
        let request = Request::post("http://shop.example/function/tls13").body(full("a body"));
        let answer = house::finish(within(sender.send_request(request.unwrap())).await.unwrap()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test]
async fn an_instance_without_a_certificate_is_waited_for_and_never_called_in_clear() {
    let site = Site::new().await;
    let (_tell, caller) = watch::channel(site.caller());
    let house = House::named(caller);
    site.publish_named(&house, &[site.at], None, Duration::from_millis(50));
    let mut sender = house::h2(house.public).await;
    for transport in [Transport::Tls13, Transport::Tls12] {
        let answer = ask(&mut sender, transport, "text/plain").await;
        assert_eq!((answer.status, answer.reason()), (502, "connect_failed"), "{answer:?}");
        assert!(answer.body.contains("the instance, whose log says why, has no certificate"), "{answer:?}");
    }
    site.publish_named(&house, &[site.at], None, LIMIT);
    let waiting = ask(&mut sender, Transport::Tls13, "text/plain");
    let named = async {
        let inflight = r#"nearpath_inflight{function_name="tls13.openfaas-fn"} 1"#;
        nearpath_testkit::eventually(inflight, async || house.metrics().contains(inflight)).await;
        site.publish_named(&house, &[site.at], Some(NAME), LIMIT);
    };
    let (answer, ()) = tokio::join!(waiting, named);
    assert_eq!(answer.body, "TLSv1_3 of gateway 1", "{answer:?}");
}
