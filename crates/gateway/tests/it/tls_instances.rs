//! Calls to instances over TLS, and the sharing of their connections.

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
use nearpath_types::policy::CallTransport;
use nearpath_types::{
    FunctionPolicy, FunctionRoute, InstanceId, InstanceRoute, InstanceState, RoutingSnapshot,
    SpiffeId,
};
use nearpath_wire::identity::{CertificateRequest as KeyRequest, Credentials, Trust};
use nearpath_wire::mtls::{DetectedProtocol, MtlsAcceptor, PeekedStream};
use nearpath_wire::quic::CallerConfig;
use nearpath_wire::zero_rtt::{Provision, TokenKey};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::fixture::{self, CollectedResponse, TestBody, TestGateway, full_body};

const TRUST_DOMAIN: &str = "test.nearpath";
const SERVER_NAME: &str = "i1.test.nearpath";
const TRANSPORTS: [CallTransport; 3] = [
    CallTransport::Tls13,
    CallTransport::Tcp,
    CallTransport::Tls12,
];
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// An authority and an instance with its certificate.
struct TlsSite {
    authority: Authority,
    trust: Trust,
    instance_addr: SocketAddr,
}

fn issue_credentials(authority: &Authority, id: SpiffeId, name: &str) -> Credentials {
    let (request, now) = (KeyRequest::new().unwrap(), SystemTime::now());
    let issued = authority
        .issue(request.csr(), &id, name, now, Duration::from_secs(3600))
        .unwrap();
    request.into_credentials(id, name.to_owned(), issued)
}

impl TlsSite {
    /// Starts an instance that answers with the kind and number of the connection.
    async fn new() -> Self {
        let authority = new_authority();
        let trust = Trust::new(TRUST_DOMAIN, &[authority.certificate().clone()]).unwrap();
        let addr = start_tls_instance(&authority, &[&authority]).await;
        Self {
            authority,
            trust,
            instance_addr: addr,
        }
    }

    fn new_caller(&self) -> CallerConfig {
        self.caller_signed_by(&self.authority)
    }

    /// Creates a caller that trusts the instance, with a certificate of `authority`.
    fn caller_signed_by(&self, authority: &Authority) -> CallerConfig {
        let credentials = issue_credentials(
            authority,
            SpiffeId::for_gateway(TRUST_DOMAIN, "node-a"),
            "gateway",
        );
        CallerConfig::new(&credentials, self.trust.clone(), &Arc::default()).unwrap()
    }

    /// Publishes one function per transport, each with an instance at the same address.
    fn publish_instance(&self, fixture: &TestGateway) {
        self.publish_instances(fixture, &[self.instance_addr]);
    }

    /// Publishes the functions with an instance at each of these addresses.
    fn publish_instances(&self, fixture: &TestGateway, all: &[SocketAddr]) {
        // So long one that cannot be reached is tried.
        self.publish_named(fixture, all, Some(SERVER_NAME), Duration::from_millis(200));
    }

    fn publish_named(
        &self,
        fixture: &TestGateway,
        all: &[SocketAddr],
        name: Option<&str>,
        cold_timeout: Duration,
    ) {
        let quic = name.map(Into::into);
        let functions = TRANSPORTS.iter().zip(1u64..).map(|(transport, function)| {
            let (name, policy) = (
                transport.to_string(),
                FunctionPolicy {
                    cold_timeout,
                    ..FunctionPolicy::default()
                },
            );
            let instances = all.iter().zip(0..).map(|(addr, number)| {
                let ready = fixture::instance_entry(*addr, InstanceState::Ready);
                let id = InstanceId(function * 100 + number);
                InstanceRoute {
                    id,
                    quic: quic.clone(),
                    transport: *transport,
                    server: None,
                    ..ready
                }
            });
            FunctionRoute {
                instances: instances.collect(),
                ..fixture::function_route(&name, policy, all)
            }
        });
        fixture.gateway.publish(&RoutingSnapshot {
            version: 1,
            nodes: Default::default(),
            functions: functions.collect(),
        });
    }
}

fn new_authority() -> Authority {
    Authority::new(TRUST_DOMAIN, SystemTime::now(), Duration::from_secs(3600)).unwrap()
}

/// Starts an instance with a certificate of `own` that accepts callers of all `authorities`.
async fn start_tls_instance(own: &Authority, authorities: &[&Authority]) -> SocketAddr {
    let id = SpiffeId::for_instance(TRUST_DOMAIN, "echo".parse().unwrap(), InstanceId(1));
    let provision = Provision {
        credentials: issue_credentials(own, id, SERVER_NAME),
        authorities: authorities
            .iter()
            .map(|authority| authority.certificate().clone())
            .collect(),
        callers: Vec::new(),
        revoked: Vec::new(),
        foreign: Vec::new(),
        token_key: TokenKey([7; 32]),
        sessions: Vec::new(),
    };
    let acceptor = Arc::new(MtlsAcceptor::new(true));
    acceptor.apply_provision(&provision).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(accept_all(listener, acceptor));
    addr
}

async fn accept_all(listener: TcpListener, acceptor: Arc<MtlsAcceptor>) {
    let number = AtomicUsize::new(0);
    while let Ok((stream, from)) = listener.accept().await {
        let number = number.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::spawn(serve_connection(stream, from, acceptor.clone(), number));
    }
}

async fn serve_connection(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Arc<MtlsAcceptor>,
    number: usize,
) {
    let Ok(begun) = PeekedStream::peek(stream).await else {
        return;
    };
    if begun.detected_protocol() == DetectedProtocol::Plain {
        return serve_text(begun, format!("plain {number}")).await;
    }
    let Ok((stream, identity)) = acceptor.accept_peer(begun, from, WAIT_LIMIT).await else {
        return;
    };
    let peer = identity.admit_peer(SystemTime::now()).unwrap();
    let text = format!(
        "{:?} of {} {number}",
        stream.get_ref().1.protocol_version().unwrap(),
        peer.name
    );
    serve_text(stream, text).await;
}

async fn serve_text(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, text: String) {
    let service = service_fn(|_| {
        let answer = Response::new(full_body(text.clone()));
        async { Ok::<_, Infallible>(answer) }
    });
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Sends a call. The same thread of the gateway answers all calls on one connection.
async fn send_call(
    sender: &mut SendRequest<TestBody>,
    transport: CallTransport,
    kind: &str,
) -> CollectedResponse {
    let target = format!("http://shop.example/function/{transport}");
    let request = Request::get(target)
        .header("x-nearpath-path", "")
        .header("content-type", kind);
    let answer = within(sender.send_request(request.body(full_body("")).unwrap()))
        .await
        .unwrap();
    fixture::collect_response(answer).await
}

async fn send_and_read_path(
    sender: &mut SendRequest<TestBody>,
    transport: CallTransport,
) -> (String, String) {
    let answer = send_call(sender, transport, "text/plain").await;
    (
        answer.body.clone(),
        answer.header("x-nearpath-path").to_owned(),
    )
}

fn text_and_path(body: &str, path: &str) -> (String, String) {
    (body.to_owned(), path.to_owned())
}

#[tokio::test]
async fn connections_are_kept_and_never_serve_calls_of_another_kind() {
    let site = TlsSite::new().await;
    let (_caller_sender, caller) = watch::channel(site.new_caller());
    let fixture = TestGateway::with_caller(caller);
    let mut sender = fixture::connect_http2(fixture.public).await;
    let over_tls = |body| text_and_path(body, "tls; obstacle=no_domain");
    site.publish_instance(&fixture);
    let wanted = [
        over_tls("TLSv1_3 of gateway 1"),
        text_and_path("plain 2", "http; obstacle=no_domain"),
        over_tls("TLSv1_2 of gateway 3"),
    ];
    for _ in 0..3 {
        for (transport, wanted) in TRANSPORTS.into_iter().zip(&wanted) {
            assert_eq!(
                send_and_read_path(&mut sender, transport).await,
                *wanted,
                "{transport}"
            );
        }
    }
}

#[tokio::test]
async fn grpc_shares_one_connection_over_tls() {
    let site = TlsSite::new().await;
    let (_caller_sender, caller) = watch::channel(site.new_caller());
    let fixture = TestGateway::with_caller(caller);
    site.publish_instance(&fixture);
    let mut sender = fixture::connect_http2(fixture.public).await;
    for _ in 0..3 {
        assert_eq!(
            send_call(&mut sender, CallTransport::Tls13, "application/grpc")
                .await
                .body,
            "TLSv1_3 of gateway 1"
        );
    }
}

#[tokio::test]
async fn a_renewed_caller_uses_no_connection_of_the_old_one() {
    let site = TlsSite::new().await;
    let (caller_sender, caller) = watch::channel(site.new_caller());
    let fixture = TestGateway::with_caller(caller);
    site.publish_instance(&fixture);
    let mut sender = fixture::connect_http2(fixture.public).await;
    for _ in 0..2 {
        assert_eq!(
            send_and_read_path(&mut sender, CallTransport::Tls13)
                .await
                .0,
            "TLSv1_3 of gateway 1"
        );
    }
    caller_sender.send_replace(site.new_caller());
    nearpath_testkit::eventually("a new connection", async || {
        send_and_read_path(&mut sender, CallTransport::Tls13)
            .await
            .0
            == "TLSv1_3 of gateway 2"
    })
    .await;
    let trust = site.trust.with_revoked(["i9".to_owned()].into());
    caller_sender.send_modify(|caller| *caller = caller.with_trust(trust.clone()));
    assert_eq!(
        send_and_read_path(&mut sender, CallTransport::Tls13)
            .await
            .0,
        "TLSv1_3 of gateway 2",
        "somebody else was taken back: nothing changes"
    );
}

#[tokio::test]
async fn a_revoked_instance_is_not_called() {
    let site = TlsSite::new().await;
    let (_caller_sender, caller) = watch::channel(
        site.new_caller()
            .with_trust(site.trust.with_revoked([SERVER_NAME.to_owned()].into())),
    );
    let fixture = TestGateway::with_caller(caller);
    site.publish_instance(&fixture);
    let answer = send_call(
        &mut fixture::connect_http2(fixture.public).await,
        CallTransport::Tls13,
        "text/plain",
    )
    .await;
    assert!(
        answer.status >= 500 && answer.body.contains("was revoked"),
        "{answer:?}"
    );
}

/// In TLS 1.3, the gateway sends its request before it learns of the rejection.
#[tokio::test]
async fn an_instance_that_rejects_the_gateway_says_so_and_has_run_nothing() {
    let (site, other) = (TlsSite::new().await, new_authority());
    let (_caller_sender, caller) = watch::channel(site.caller_signed_by(&other));
    let fixture = TestGateway::with_caller(caller);
    site.publish_instance(&fixture);
    let mut sender = fixture::connect_http2(fixture.public).await;
    for (transport, kind) in [
        (CallTransport::Tls13, "text/plain"),
        (CallTransport::Tls12, "text/plain"),
        (CallTransport::Tls13, "application/grpc"),
        (CallTransport::Tls12, "application/grpc"),
    ] {
        let answer = send_call(&mut sender, transport, kind).await;
        assert_eq!(
            answer.reason(),
            "connect_failed",
            "{transport} {kind} {answer:?}"
        );
        let text = format!("{}{}", answer.body, answer.header("grpc-message"));
        assert!(
            text.contains("DecryptError") || text.contains("UnknownCA"),
            "{answer:?}"
        );
    }
    let request = Request::post("http://shop.example/function/tls13").body(full_body("a body"));
    let answer =
        fixture::collect_response(within(sender.send_request(request.unwrap())).await.unwrap())
            .await;
    assert_eq!(
        (answer.status, answer.reason()),
        (502, "connect_failed"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn another_instance_that_accepts_the_gateway_gets_the_call() {
    let (site, other) = (TlsSite::new().await, new_authority());
    let (_caller_sender, caller) = watch::channel(site.caller_signed_by(&other));
    let fixture = TestGateway::with_caller(caller);
    let accepting = start_tls_instance(&site.authority, &[&site.authority, &other]).await;
    site.publish_instances(&fixture, &[site.instance_addr, accepting]);
    let mut sender = fixture::connect_http2(fixture.public).await;
    for round in 0..10 {
        for (transport, kind) in [
            (CallTransport::Tls13, "text/plain"),
            (CallTransport::Tls13, "application/grpc"),
        ] {
            let answer = send_call(&mut sender, transport, kind).await;
            assert!(
                answer.body.starts_with("TLSv1_3 of gateway"),
                "{round} {kind} {answer:?}"
            );
        }
        let request = Request::post("http://shop.example/function/tls13").body(full_body("a body"));
        let answer =
            fixture::collect_response(within(sender.send_request(request.unwrap())).await.unwrap())
                .await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test]
async fn an_instance_without_a_certificate_is_waited_for_and_never_called_in_clear() {
    let site = TlsSite::new().await;
    let (_caller_sender, caller) = watch::channel(site.new_caller());
    let fixture = TestGateway::with_caller(caller);
    site.publish_named(
        &fixture,
        &[site.instance_addr],
        None,
        Duration::from_millis(50),
    );
    let mut sender = fixture::connect_http2(fixture.public).await;
    for transport in [CallTransport::Tls13, CallTransport::Tls12] {
        let answer = send_call(&mut sender, transport, "text/plain").await;
        assert_eq!(
            (answer.status, answer.reason()),
            (502, "connect_failed"),
            "{answer:?}"
        );
        assert!(
            answer
                .body
                .contains("the instance, whose log says why, has no certificate"),
            "{answer:?}"
        );
    }
    site.publish_named(&fixture, &[site.instance_addr], None, WAIT_LIMIT);
    let waiting = send_call(&mut sender, CallTransport::Tls13, "text/plain");
    let named = async {
        let inflight = r#"nearpath_inflight{function_name="tls13.openfaas-fn"} 1"#;
        nearpath_testkit::eventually(inflight, async || {
            fixture.encode_metrics().contains(inflight)
        })
        .await;
        site.publish_named(
            &fixture,
            &[site.instance_addr],
            Some(SERVER_NAME),
            WAIT_LIMIT,
        );
    };
    let (answer, ()) = tokio::join!(waiting, named);
    assert_eq!(answer.body, "TLSv1_3 of gateway 1", "{answer:?}");
}
