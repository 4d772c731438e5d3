//! Refused peers, and the reasons that they get.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::PeerRefusal;
use nearpath_wire::quic::{
    CallerConnection, EarlyData, QuicCallError, QuicDialError, QuicResponseBody, ServedCall,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::quic::fixture::{
    DOMAIN, LIMIT, QuicFixture, RunningWorker, TestCaller, echo, post, run,
};

/// Error of a refused caller: at the handshake, or with its first call.
async fn refusal_of(caller: &TestCaller, worker: &RunningWorker) -> String {
    match caller
        .dialer()
        .dial_worker(worker.addr, &worker.name, LIMIT)
        .await
    {
        Err(error) => error.to_string(),
        Ok(connection) => {
            let error = connection
                .call_buffered(post("in"), EarlyData::Allowed)
                .await
                .unwrap_err();
            format!("{error}: {:?}", connection.connection().close_reason())
        }
    }
}

fn gateway() -> SpiffeId {
    SpiffeId::for_gateway(DOMAIN, "node-a")
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    run(async {
        let (fixture, other) = (QuicFixture::new(), QuicFixture::new());
        let worker = fixture.worker(1).start(echo);
        let mut caller = other.caller();
        assert!(
            refusal_of(&caller, &worker)
                .await
                .contains("invalid peer certificate"),
            "it does not trust the worker either"
        );
        let credentials = other.credentials(gateway(), "gateway");
        caller = fixture.caller_as(credentials);
        let message = refusal_of(&caller, &worker).await;
        assert!(
            message.contains("UnknownIssuer") || message.contains("certificate"),
            "{message}"
        );
    });
}

#[test]
fn an_expired_certificate_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let worker = fixture.worker(1).start(echo);
        let long_ago = SystemTime::now() - Duration::from_secs(7200);
        let old = fixture.credentials_at(gateway(), "gateway", long_ago, Duration::from_secs(60));
        let message = refusal_of(&fixture.caller_as(old), &worker).await;
        assert!(message.to_lowercase().contains("expired"), "{message}");
    });
}

#[test]
fn a_session_does_not_outlive_its_certificate() {
    run(async {
        let fixture = QuicFixture::new();
        let (short, now) = (Duration::from_secs(2), SystemTime::now());
        let caller = fixture.caller_as(fixture.credentials_at(gateway(), "gateway", now, short));
        let mut worker = fixture.worker(1);
        worker.mint_session(&caller);
        let worker = worker.start(echo);
        tokio::time::sleep(Duration::from_secs(4)).await; // validity has a resolution of one second
        let message = refusal_of(&caller, &worker).await;
        assert!(
            message.contains(
                "the certificate of spiffe://test.nearpath/node/node-a/gateway has expired"
            ),
            "{message}"
        );
    });
}

#[test]
fn a_revoked_certificate_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let caller = fixture.caller_as(fixture.credentials(gateway(), "gateway"));
        let mut worker = fixture.worker(1);
        worker.mint_session(&caller);
        worker.trust = fixture.trust.with_revoked(["gateway".to_owned()].into());
        let message = refusal_of(&caller, &worker.start(echo)).await;
        assert!(message.contains("was revoked"), "{message}");
    });
}

#[test]
fn a_function_without_an_edge_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let function = |name: &str, number| {
            SpiffeId::for_instance(DOMAIN, name.parse().unwrap(), InstanceId(number))
        };
        let mut worker = fixture.worker(1);
        worker.trust = fixture
            .trust
            .with_callers(["friend".parse().unwrap()].into());
        let worker = worker.start(echo);
        let stranger = fixture.caller_as(fixture.credentials(function("stranger", 8), "i8"));
        let message = refusal_of(&stranger, &worker).await;
        assert!(
            message.contains(
                "no edge leads from spiffe://test.nearpath/ns/openfaas-fn/fn/stranger/instance/8"
            ),
            "{message}"
        );
        for id in [function("friend", 9), gateway()] {
            let connection = fixture
                .caller_as(fixture.credentials(id, "i9"))
                .dial_running(&worker)
                .await;
            assert!(
                connection
                    .call_buffered(post("in"), EarlyData::Allowed)
                    .await
                    .unwrap()
                    .status()
                    .is_success()
            );
        }
    });
}

#[test]
fn another_trust_domain_of_the_same_authority_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let foreign = fixture.authority.issue(
            nearpath_wire::identity::CertificateRequest::new()
                .unwrap()
                .csr(),
            &SpiffeId::for_gateway("elsewhere", "node"),
            "gateway",
            SystemTime::now(),
            LIMIT,
        );
        assert!(
            foreign
                .unwrap_err()
                .to_string()
                .contains("not for elsewhere")
        );
        let peer = fixture.credentials(gateway(), "gateway");
        let trust = nearpath_wire::identity::Trust::new(
            "elsewhere",
            &[fixture.authority.certificate().clone()],
        )
        .unwrap();
        assert_eq!(
            trust.admit_peer(&peer.chain, SystemTime::now()),
            Err(PeerRefusal::TrustDomain(gateway()))
        );
    });
}

#[test]
fn another_worker_than_the_called_one_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let worker = fixture.worker(1).start(echo);
        let dialed = fixture
            .caller()
            .dialer()
            .dial_worker(worker.addr, "i2.test.nearpath", LIMIT)
            .await;
        assert!(matches!(
            dialed.unwrap_err(),
            QuicDialError::Handshake { .. }
        ));
    });
}

#[test]
fn a_dial_without_an_answer_times_out() {
    run(async {
        let fixture = QuicFixture::new();
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let dialed = fixture
            .caller()
            .dialer()
            .dial_worker(
                silent.local_addr().unwrap(),
                "i1",
                Duration::from_millis(50),
            )
            .await;
        assert!(matches!(dialed.unwrap_err(), QuicDialError::Timeout { .. }));
    });
}

/// Handler that responds to `/slow` once it is notified.
fn slow_handler(
    go: &Rc<Notify>,
) -> impl Fn(ServedCall) -> Pin<Box<dyn Future<Output = Response<Full<Bytes>>>>> + 'static {
    let go = Rc::clone(go);
    move |call| {
        let go = Rc::clone(&go);
        Box::pin(async move {
            if call.request.uri().path() == "/slow" {
                go.notified().await;
            }
            Response::new(Full::new(Bytes::from_static(b"done")))
        })
    }
}

fn slow_request() -> http::Request<Bytes> {
    http::Request::post("/slow").body(Bytes::new()).unwrap()
}

/// A call that started in time, on a connection whose caller's certificate has expired since.
async fn outlived_call(
    fixture: &QuicFixture,
    worker: &RunningWorker,
) -> (
    CallerConnection,
    JoinHandle<Result<Response<QuicResponseBody>, QuicCallError>>,
) {
    let brief = fixture.credentials_at(
        gateway(),
        "gateway",
        SystemTime::now(),
        Duration::from_secs(2),
    );
    let connection = fixture.caller_as(brief).dial_running(worker).await;
    let open = connection.clone();
    let started = tokio::task::spawn_local(async move {
        open.call_buffered(slow_request(), EarlyData::Never).await
    });
    connection
        .call_buffered(post("in time"), EarlyData::Never)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await; // validity has a resolution of one second
    let late = connection
        .call_buffered(post("late"), EarlyData::Never)
        .await
        .unwrap_err();
    assert!(
        matches!(late, QuicCallError::NotRun(_)),
        "it is safe to make it with another certificate: {late}"
    );
    (connection, started)
}

#[test]
fn a_call_outlives_its_callers_certificate_and_no_other_begins() {
    run(async {
        let (fixture, go) = (QuicFixture::new(), Rc::new(Notify::new()));
        let worker = fixture.worker(1).start(slow_handler(&go));
        let (connection, started) = outlived_call(&fixture, &worker).await;
        go.notify_one();
        assert_eq!(started.await.unwrap().unwrap().status(), 200);
        assert!(!connection.is_closed());
    });
}

#[test]
fn a_revoked_caller_does_not_finish_calls_that_began_in_time() {
    run(async {
        let (fixture, go) = (QuicFixture::new(), Rc::new(Notify::new()));
        let worker = fixture.worker(1).start(slow_handler(&go));
        let (_line, started) = outlived_call(&fixture, &worker).await;
        worker.set_trust(fixture.trust.with_revoked(["gateway".to_owned()].into()));
        let message = started.await.unwrap().unwrap_err();
        assert!(
            matches!(&message, QuicCallError::Interrupted(_))
                && message.to_string().contains("was revoked"),
            "{message}"
        );
    });
}

#[test]
fn a_root_that_is_removed_during_the_handshake_ends_the_connection() {
    run(async {
        let (fixture, other) = (QuicFixture::new(), QuicFixture::new());
        let worker = fixture.worker(1).start(echo);
        let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let dialed = endpoint.connect_with(fixture.caller().config, worker.addr, &worker.name);
        let connection = dialed.unwrap().await.unwrap();
        // The worker, on the same thread, has not read the caller's certificate yet.
        worker.set_trust(other.trust);
        let end = connection.closed().await.to_string();
        assert!(end.contains("root"), "{end}");
    });
}
