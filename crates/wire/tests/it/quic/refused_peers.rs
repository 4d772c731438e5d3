//! Every kind of refused peer, as caller and as worker. Each side reports the reason, and no call
//! runs: not in a full handshake, not in a resumed one, not in a first flight.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::{FunctionId, InstanceId, SpiffeId};
use nearpath_wire::identity::{Credentials, Trust};
use nearpath_wire::quic::{EarlyData, QuicCallError, QuicDialError, config};
use nearpath_wire::zero_rtt::mint;
use rustls::version::{TLS12, TLS13};

use crate::quic::fixture::{
    DOMAIN, LIMIT, QuicFixture, RunningWorker, TestCaller, TestWorkerSpec, counting, post, run,
};

const HOUR: Duration = Duration::from_secs(3600);

fn instance(function: &str) -> SpiffeId {
    SpiffeId::for_instance(
        DOMAIN,
        function.parse::<FunctionId>().unwrap(),
        InstanceId(9),
    )
}

fn gateway() -> SpiffeId {
    SpiffeId::for_gateway(DOMAIN, "node-a")
}

/// Reasons that caller and worker report.
struct RefusalTexts {
    caller: String,
    worker: String,
}

async fn call_refused(caller: &TestCaller, worker: &mut RunningWorker) -> RefusalTexts {
    let caller = match caller
        .dialer()
        .dial_worker(worker.addr, &worker.name, LIMIT)
        .await
    {
        Err(error) => error.to_string(),
        Ok(connection) => match connection
            .call_buffered(post("in"), EarlyData::Allowed)
            .await
        {
            Err(QuicCallError::NotRun(why)) => why,
            Err(error) => panic!("nothing ran, which the caller is to know: {error}"),
            Ok(answer) => panic!("it was let in: {answer:?}"),
        },
    };
    worker.refusals.changed().await.unwrap();
    RefusalTexts {
        caller,
        worker: worker.refusals.borrow().last.clone(),
    }
}

/// Calls with a full handshake. Both sides report `why`, and the worker the caller's address.
async fn assert_refused(caller: &TestCaller, worker: &TestWorkerSpec, why: &str) {
    let runs = Rc::new(Cell::new(0));
    let mut running = worker.start(counting(&runs));
    let message = call_refused(caller, &mut running).await;
    assert!(
        message.caller.contains(why),
        "the caller is told: {}",
        message.caller
    );
    assert!(
        message.worker.contains(why) && message.worker.contains("127.0.0.1:"),
        "the worker says: {}",
        message.worker
    );
    assert_eq!(runs.get(), 0, "nothing ran");
}

/// Calls in a first flight, with a session from before the refusal.
async fn assert_refused_early(
    caller: &TestCaller,
    worker: &mut TestWorkerSpec,
    now: impl FnOnce(&mut TestWorkerSpec),
    why: &str,
) {
    worker.mint_session(caller);
    now(worker);
    let runs = Rc::new(Cell::new(0));
    let mut running = worker.start(counting(&runs));
    let message = call_refused(caller, &mut running).await;
    assert_eq!(
        running.sessions.use_counts(),
        (1, 0),
        "there was a session, and the worker knew it"
    );
    assert!(
        message.caller.contains(why),
        "the caller is told: {}",
        message.caller
    );
    assert!(
        message.worker.contains(why),
        "the worker says: {}",
        message.worker
    );
    assert_eq!(runs.get(), 0, "nothing ran");
}

/// Control of all tests below: an admitted caller is served on the same path, and counted.
#[test]
fn an_admitted_caller_is_served() {
    run(async {
        let (fixture, runs) = (QuicFixture::new(), Rc::new(Cell::new(0)));
        let mut worker = fixture.worker(1);
        worker.trust = fixture
            .trust
            .with_callers(["friend".parse().unwrap()].into());
        let caller = fixture.caller_as(fixture.credentials(instance("friend"), "i9"));
        worker.mint_session(&caller);
        let running = worker.start(counting(&runs));
        for _ in 0..2 {
            let connection = caller.dial_running(&running).await;
            connection
                .call_buffered(post("in"), EarlyData::Allowed)
                .await
                .unwrap();
            connection.close();
        }
        assert_eq!((runs.get(), running.refusals.borrow().count), (2, 0));
    });
}

#[test]
fn a_caller_with_an_expired_or_future_certificate_is_refused() {
    run(async {
        let (fixture, worker) = (QuicFixture::new(), QuicFixture::worker);
        let at = |now| {
            fixture.caller_as(fixture.credentials_at(
                gateway(),
                "gateway",
                now,
                Duration::from_secs(60),
            ))
        };
        let (past, future) = (SystemTime::now() - 2 * HOUR, SystemTime::now() + 2 * HOUR);
        assert_refused(&at(past), &worker(&fixture, 1), "certificate expired").await;
        assert_refused(&at(future), &worker(&fixture, 2), "not valid yet").await;
    });
}

#[test]
fn a_caller_of_another_authority_is_refused() {
    run(async {
        let (fixture, other) = (QuicFixture::new(), QuicFixture::new());
        let caller = fixture.caller_as(other.credentials(gateway(), "gateway"));
        // both authorities have the same name
        assert_refused(&caller, &fixture.worker(1), "BadSignature").await;
    });
}

#[test]
fn a_self_signed_caller_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let caller = fixture.caller_as(self_signed(gateway(), "gateway"));
        assert_refused(&caller, &fixture.worker(1), "UnknownIssuer").await;
    });
}

#[test]
fn a_caller_without_a_certificate_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let caller = fixture.caller_with(client_tls(&fixture, &[&TLS13]));
        assert_refused(&caller, &fixture.worker(1), "peer sent no certificates").await;
    });
}

#[test]
fn a_caller_with_another_protocol_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let mut config = client_tls(&fixture, &[&TLS13]);
        config.alpn_protocols = vec![b"h3".to_vec()];
        assert_refused(
            &fixture.caller_with(config),
            &fixture.worker(1),
            "peer doesn't support any known protocol",
        )
        .await;
    });
}

/// QUIC requires TLS 1.3 (RFC 9001 section 4.2), so the library starts no handshake.
#[test]
fn tls_before_1_3_cannot_be_spoken() {
    let (fixture, name) = (QuicFixture::new(), || {
        "i1.test.nearpath".try_into().unwrap()
    });
    let connect = |version| {
        let config = Arc::new(client_tls(&fixture, &[version]));
        rustls::quic::ClientConnection::new(config, rustls::quic::Version::V1, name(), Vec::new())
            .map(drop)
    };
    assert!(
        connect(&TLS12)
            .unwrap_err()
            .to_string()
            .contains("TLS 1.3 support is required for QUIC")
    );
    connect(&TLS13).unwrap();
}

#[test]
fn a_caller_of_another_namespace_or_without_an_edge_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let only_friends = fixture
            .trust
            .with_callers(["friend".parse().unwrap()].into());
        // The last one is a worker that is not a declared caller, with a valid certificate.
        for (number, stranger) in ["friend.elsewhere", "stranger", "echo"]
            .into_iter()
            .enumerate()
        {
            let why = format!("no edge leads from {} to here", instance(stranger));
            let caller = || fixture.caller_as(fixture.credentials(instance(stranger), "i9"));
            let mut worker = TestWorkerSpec {
                trust: only_friends.clone(),
                ..fixture.worker(number as u64)
            };
            assert_refused(&caller(), &worker, &why).await;
            worker.trust = fixture.trust.clone();
            let closed = |worker: &mut TestWorkerSpec| worker.trust = only_friends.clone();
            assert_refused_early(&caller(), &mut worker, closed, &why).await;
        }
    });
}

#[test]
fn a_revoked_caller_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let caller = || fixture.caller_as(fixture.credentials(gateway(), "gateway"));
        let why = format!("the certificate of {} was revoked", gateway());
        let revoked = || fixture.trust.with_revoked(["gateway".to_owned()].into());
        assert_refused(
            &caller(),
            &TestWorkerSpec {
                trust: revoked(),
                ..fixture.worker(1)
            },
            &why,
        )
        .await;
        assert_refused_early(
            &caller(),
            &mut fixture.worker(2),
            |worker| worker.trust = revoked(),
            &why,
        )
        .await;
    });
}

#[test]
fn a_caller_of_another_trust_domain_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let caller = || fixture.caller_as(fixture.credentials(gateway(), "gateway"));
        let why = format!("{} belongs to another trust domain", gateway());
        let elsewhere =
            || Trust::new("elsewhere", &[fixture.authority.certificate().clone()]).unwrap();
        assert_refused(
            &caller(),
            &TestWorkerSpec {
                trust: elsewhere(),
                ..fixture.worker(1)
            },
            &why,
        )
        .await;
        assert_refused_early(
            &caller(),
            &mut fixture.worker(2),
            |worker| worker.trust = elsewhere(),
            &why,
        )
        .await;
    });
}

/// Error of a caller that refuses a worker.
async fn dial_error(caller: &TestCaller, worker: &TestWorkerSpec) -> String {
    let runs = Rc::new(Cell::new(0));
    let running = worker.start(counting(&runs));
    let message = match caller
        .dialer()
        .dial_worker(running.addr, &running.name, LIMIT)
        .await
    {
        Err(error @ (QuicDialError::Handshake { .. } | QuicDialError::PeerRefused { .. })) => {
            error.to_string()
        }
        Err(other) => panic!("{other}"),
        Ok(connection) => connection
            .call_buffered(post(""), EarlyData::Never)
            .await
            .unwrap_err()
            .to_string(),
    };
    assert_eq!(runs.get(), 0, "nothing ran");
    message
}

#[test]
fn a_worker_with_a_bad_certificate_is_not_called() {
    run(async {
        let (fixture, other, now) = (QuicFixture::new(), QuicFixture::new(), SystemTime::now());
        let name = "i1.test.nearpath";
        let at = |now| fixture.credentials_at(instance("echo"), name, now, Duration::from_secs(60));
        let of = |credentials| TestWorkerSpec {
            credentials,
            ..fixture.worker(1)
        };
        let message =
            |worker: TestWorkerSpec| async { dial_error(&fixture.caller(), &{ worker }).await };
        for (credentials, why) in [
            (at(now - 2 * HOUR), "certificate expired"),
            (at(now + 2 * HOUR), "not valid yet"),
            // both authorities have the same name
            (other.credentials(instance("echo"), name), "BadSignature"),
            (self_signed(instance("echo"), name), "UnknownIssuer"),
            (
                fixture.credentials(gateway(), name),
                "spiffe://test.nearpath/node/node-a/gateway is not an instance of a function",
            ),
        ] {
            let message = message(of(credentials)).await;
            assert!(message.contains(why), "{message}");
            assert!(message.contains("127.0.0.1:"), "{message}");
        }
    });
}

/// The caller checks its own revocation list, also when a session is resumed.
#[test]
fn a_revoked_worker_is_not_called() {
    run(async {
        let (fixture, mut worker) = (QuicFixture::new(), QuicFixture::new().worker(1));
        let mut caller = fixture.caller();
        caller.trust = fixture
            .trust
            .with_revoked([worker.credentials.name.clone()].into());
        worker = fixture.worker(1);
        let message = dial_error(&caller, &worker).await;
        assert!(
            message.contains(&format!(
                "the certificate of {} was revoked",
                worker.credentials.id
            )),
            "{message}"
        );
        worker.mint_session(&caller);
        let message = dial_error(&caller, &worker).await;
        assert!(
            message.contains(&format!(
                "the certificate of {} was revoked",
                worker.credentials.id
            )),
            "{message}"
        );
    });
}

/// No session is minted for a peer that would be refused.
#[test]
fn nothing_is_minted_for_a_certificate_that_is_not_valid() {
    let fixture = QuicFixture::new();
    for now in [SystemTime::now() - 2 * HOUR, SystemTime::now() + 2 * HOUR] {
        let caller = fixture.caller_as(fixture.credentials_at(
            gateway(),
            "gateway",
            now,
            Duration::from_secs(60),
        ));
        let mut provision = crate::quic::worker::provision_for(&fixture, &fixture.worker(1));
        let minted =
            mint::mint_for_worker(&mut provision, caller.config.clone(), [127, 0, 0, 1].into());
        assert!(
            matches!(minted, Err(mint::MintError::NoSession)),
            "{minted:?}"
        );
        assert!(provision.sessions.is_empty());
    }
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    run(async {
        let (fixture, runs) = (QuicFixture::new(), Rc::new(Cell::new(0)));
        let caller = fixture.caller();
        let mut worker = TestWorkerSpec {
            max_connections: 2,
            ..fixture.worker(1)
        };
        (0..2).for_each(|_| worker.mint_session(&caller));
        let running = worker.start(counting(&runs));
        let lines = [
            caller.dial_running(&running).await,
            caller.dial_running(&running).await,
        ];
        for connection in &lines {
            connection
                .call_buffered(post("in"), EarlyData::Never)
                .await
                .unwrap();
        }
        let with = caller.dial_running(&running).await;
        assert!(with.is_early());
        let without = fixture.caller().dial_running(&running).await;
        assert!(!without.is_early());
        for beyond in [with, without] {
            let message = beyond
                .call_buffered(post("too many"), EarlyData::Allowed)
                .await
                .unwrap_err()
                .to_string();
            assert!(
                message.starts_with("not run: ")
                    && message.contains("this worker has 2 connections"),
                "{message}"
            );
        }
        assert_eq!(runs.get(), 2, "those beyond did not run");
        lines[0].close();
        while running.endpoint.open_connections() > 1 {
            tokio::task::yield_now().await;
        }
        caller
            .dial_running(&running)
            .await
            .call_buffered(post("in"), EarlyData::Never)
            .await
            .unwrap();
    });
}

/// An unfinished handshake holds a permit for a limited time only.
#[test]
fn a_handshake_that_stops_in_the_middle_is_cut() {
    run(async {
        let fixture = QuicFixture::new();
        let mut worker = fixture.worker(1).start(counting(&Rc::default()));
        let (caller, now) = (fixture.caller(), std::time::Instant::now());
        let mut half =
            mint::CallerHandshake::new(caller.config.clone(), &worker.name, worker.addr, now)
                .unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in half.exchange_datagrams(&[]) {
            socket.send_to(&datagram, worker.addr).unwrap();
        }
        worker.refusals.changed().await.unwrap();
        let message = worker.refusals.borrow().last.clone();
        assert!(
            message.contains("the handshake was not complete within 10s"),
            "{message}"
        );
    });
}

#[test]
fn a_first_flight_without_an_answer_times_out() {
    run(async {
        let (fixture, silent) = (
            QuicFixture::new(),
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let (caller, mut worker) = (fixture.caller(), fixture.worker(1));
        worker.mint_session(&caller);
        let (addr, limit) = (silent.local_addr().unwrap(), Duration::from_millis(50));
        let connection = caller
            .dialer()
            .dial_worker(addr, &worker.credentials.name, limit)
            .await
            .unwrap();
        assert!(connection.is_early());
        let (sent, held) = tokio::join!(
            connection.call_buffered(post(""), EarlyData::Allowed),
            connection.call_buffered(post(""), EarlyData::Never)
        );
        assert_eq!(
            sent.unwrap_err().to_string(),
            "no response over UDP within 50ms; the call may have run"
        );
        assert_eq!(
            held.unwrap_err().to_string(),
            "not run: no response over UDP within 50ms"
        );
        assert!(connection.is_closed());
    });
}

/// quinn calls such a first flight rejected, but a worker may have run it.
#[test]
fn a_first_flight_on_a_connection_that_ends_meanwhile_may_have_run() {
    run(async {
        let (fixture, silent) = (
            QuicFixture::new(),
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let (caller, mut worker) = (fixture.caller(), fixture.worker(1));
        worker.mint_session(&caller);
        let connection = caller
            .dialer()
            .dial_worker(
                silent.local_addr().unwrap(),
                &worker.credentials.name,
                Duration::from_secs(30),
            )
            .await
            .unwrap();
        let (sent, held, ()) = tokio::join!(
            connection.call_buffered(post(""), EarlyData::Allowed),
            connection.call_buffered(post(""), EarlyData::Never),
            async { connection.close() }
        );
        assert!(
            matches!(sent, Err(QuicCallError::Interrupted(_))),
            "{sent:?}"
        );
        assert!(matches!(held, Err(QuicCallError::NotRun(_))), "{held:?}");
    });
}

fn client_tls(
    fixture: &QuicFixture,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(fixture.authority.certificate().clone()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ));
    let builder = builder
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut tls = builder.with_no_client_auth();
    tls.alpn_protocols = vec![config::ALPN.to_vec()];
    tls
}

/// A self-signed certificate, with an arbitrary identity.
fn self_signed(id: SpiffeId, name: &str) -> Credentials {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    params
        .subject_alt_names
        .push(rcgen::SanType::URI(id.to_string().try_into().unwrap()));
    let chain = vec![params.self_signed(&key).unwrap().der().clone()];
    Credentials {
        id,
        name: name.to_owned(),
        chain,
        key: key.serialize_der(),
        not_after: SystemTime::now() + HOUR,
    }
}
