//! Every kind of peer that is not to be let in, as caller and as worker: each side says who and why, and nothing runs; not in a full
//! handshake, not in a resumed one, not in a first flight.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::{FunctionId, InstanceId, SpiffeId};
use nearpath_wire::early::mint;
use nearpath_wire::identity::{Credentials, Trust};
use nearpath_wire::quic::{CallError, DialError, Early, config};
use rustls::version::{TLS12, TLS13};

use crate::quic::site::{Caller, DOMAIN, LIMIT, Running, Site, Worker, counting, post, run};

const HOUR: Duration = Duration::from_secs(3600);

fn instance(function: &str) -> SpiffeId {
    SpiffeId::instance(DOMAIN, function.parse::<FunctionId>().unwrap(), InstanceId(9))
}

fn gateway() -> SpiffeId {
    SpiffeId::gateway(DOMAIN, "node-a")
}

/// What both sides say when this caller calls.
struct Told {
    caller: String,
    worker: String,
}

async fn call(caller: &Caller, worker: &mut Running) -> Told {
    let caller = match caller.dialer().dial(worker.addr, &worker.name, LIMIT).await {
        Err(error) => error.to_string(),
        Ok(line) => match line.call_whole(post("in"), Early::Allowed).await {
            Err(CallError::Unseen(why)) => why,
            Err(error) => panic!("nothing ran, which the caller is to know: {error}"),
            Ok(answer) => panic!("it was let in: {answer:?}"),
        },
    };
    worker.refused.changed().await.unwrap();
    Told { caller, worker: worker.refused.borrow().last.clone() }
}

/// Calls in a full handshake; `why` is what both sides name, and the worker says where from.
async fn refused(caller: &Caller, worker: &Worker, why: &str) {
    let runs = Rc::new(Cell::new(0));
    let mut running = worker.start(counting(&runs));
    let told = call(caller, &mut running).await;
    assert!(told.caller.contains(why), "the caller is told: {}", told.caller);
    assert!(told.worker.contains(why) && told.worker.contains("127.0.0.1:"), "the worker says: {}", told.worker);
    assert_eq!(runs.get(), 0, "nothing ran");
}

/// The same with a session of better times: in a first flight.
async fn refused_early(caller: &Caller, worker: &mut Worker, now: impl FnOnce(&mut Worker), why: &str) {
    worker.mint(caller);
    now(worker);
    let runs = Rc::new(Cell::new(0));
    let mut running = worker.start(counting(&runs));
    let told = call(caller, &mut running).await;
    assert_eq!(running.register.counts(), (1, 0), "there was a session, and the worker knew it");
    assert!(told.caller.contains(why), "the caller is told: {}", told.caller);
    assert!(told.worker.contains(why), "the worker says: {}", told.worker);
    assert_eq!(runs.get(), 0, "nothing ran");
}

/// The control of all that follows: who is wanted is let in, by the same way, and is counted.
#[test]
fn who_is_wanted_is_let_in() {
    run(async {
        let (site, runs) = (Site::new(), Rc::new(Cell::new(0)));
        let mut worker = site.worker(1);
        worker.trust = site.trust.called_by(["friend".parse().unwrap()].into());
        let caller = site.caller_as(site.credentials(instance("friend"), "i9"));
        worker.mint(&caller);
        let running = worker.start(counting(&runs));
        for _ in 0..2 {
            let line = caller.dial(&running).await;
            line.call_whole(post("in"), Early::Allowed).await.unwrap();
            line.close();
        }
        assert_eq!((runs.get(), running.refused.borrow().count), (2, 0));
    });
}

#[test]
fn a_caller_out_of_its_time() {
    run(async {
        let (site, worker) = (Site::new(), Site::worker);
        let at = |now| site.caller_as(site.credentials_at(gateway(), "gateway", now, Duration::from_secs(60)));
        let (past, future) = (SystemTime::now() - 2 * HOUR, SystemTime::now() + 2 * HOUR);
        refused(&at(past), &worker(&site, 1), "certificate expired").await;
        refused(&at(future), &worker(&site, 2), "not valid yet").await;
    });
}

#[test]
fn a_caller_of_another_authority() {
    run(async {
        let (site, other) = (Site::new(), Site::new());
        let caller = site.caller_as(other.credentials(gateway(), "gateway"));
        refused(&caller, &site.worker(1), "BadSignature").await; // the authorities are named alike
    });
}

#[test]
fn a_caller_that_signed_for_itself() {
    run(async {
        let site = Site::new();
        let caller = site.caller_as(self_signed(gateway(), "gateway"));
        refused(&caller, &site.worker(1), "UnknownIssuer").await;
    });
}

#[test]
fn a_caller_without_a_certificate() {
    run(async {
        let site = Site::new();
        let caller = site.caller_with(tls(&site, &[&TLS13]));
        refused(&caller, &site.worker(1), "peer sent no certificates").await;
    });
}

#[test]
fn a_caller_with_another_protocol() {
    run(async {
        let site = Site::new();
        let mut tls = tls(&site, &[&TLS13]);
        tls.alpn_protocols = vec![b"h3".to_vec()];
        refused(&site.caller_with(tls), &site.worker(1), "peer doesn't support any known protocol").await;
    });
}

/// QUIC has no place for it (RFC 9001 section 4.2): the library makes no first flight of it.
#[test]
fn tls_before_1_3_cannot_be_spoken() {
    let (site, name) = (Site::new(), || "i1.test.nearpath".try_into().unwrap());
    let connect = |version| {
        let tls = Arc::new(tls(&site, &[version]));
        rustls::quic::ClientConnection::new(tls, rustls::quic::Version::V1, name(), Vec::new()).map(drop)
    };
    assert!(connect(&TLS12).unwrap_err().to_string().contains("TLS 1.3 support is required for QUIC"));
    connect(&TLS13).unwrap();
}

#[test]
fn a_caller_of_another_namespace_or_without_an_edge() {
    run(async {
        let site = Site::new();
        let only_friends = site.trust.called_by(["friend".parse().unwrap()].into());
        // The last is a worker, which nobody declared to be a caller: its certificate is as good as any.
        for (number, stranger) in ["friend.elsewhere", "stranger", "echo"].into_iter().enumerate() {
            let why = format!("no edge leads from {} to here", instance(stranger));
            let caller = || site.caller_as(site.credentials(instance(stranger), "i9"));
            let mut worker = Worker { trust: only_friends.clone(), ..site.worker(number as u64) };
            refused(&caller(), &worker, &why).await;
            worker.trust = site.trust.clone();
            let closed = |worker: &mut Worker| worker.trust = only_friends.clone();
            refused_early(&caller(), &mut worker, closed, &why).await;
        }
    });
}

#[test]
fn a_caller_that_was_taken_back() {
    run(async {
        let site = Site::new();
        let caller = || site.caller_as(site.credentials(gateway(), "gateway"));
        let why = format!("the certificate of {} was revoked", gateway());
        let revoked = || site.trust.without(["gateway".to_owned()].into());
        refused(&caller(), &Worker { trust: revoked(), ..site.worker(1) }, &why).await;
        refused_early(&caller(), &mut site.worker(2), |worker| worker.trust = revoked(), &why).await;
    });
}

#[test]
fn a_caller_of_another_trust_domain() {
    run(async {
        let site = Site::new();
        let caller = || site.caller_as(site.credentials(gateway(), "gateway"));
        let why = format!("{} is of another trust domain", gateway());
        let elsewhere = || Trust::new("elsewhere", &[site.authority.certificate().clone()]).unwrap();
        refused(&caller(), &Worker { trust: elsewhere(), ..site.worker(1) }, &why).await;
        refused_early(&caller(), &mut site.worker(2), |worker| worker.trust = elsewhere(), &why).await;
    });
}

/// What a caller says of a worker that it does not accept.
async fn dialed(caller: &Caller, worker: &Worker) -> String {
    let runs = Rc::new(Cell::new(0));
    let running = worker.start(counting(&runs));
    let told = match caller.dialer().dial(running.addr, &running.name, LIMIT).await {
        Err(error @ (DialError::Handshake { .. } | DialError::Peer { .. })) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(line) => line.call_whole(post(""), Early::Never).await.unwrap_err().to_string(),
    };
    assert_eq!(runs.get(), 0, "nothing ran");
    told
}

#[test]
fn a_worker_that_is_not_to_be_called() {
    run(async {
        let (site, other, now) = (Site::new(), Site::new(), SystemTime::now());
        let name = "i1.test.nearpath";
        let at = |now| site.credentials_at(instance("echo"), name, now, Duration::from_secs(60));
        let of = |credentials| Worker { credentials, ..site.worker(1) };
        let told = |worker: Worker| async { dialed(&site.caller(), &{ worker }).await };
        for (credentials, why) in [
            (at(now - 2 * HOUR), "certificate expired"),
            (at(now + 2 * HOUR), "not valid yet"),
            (other.credentials(instance("echo"), name), "BadSignature"), // the authorities are named alike
            (self_signed(instance("echo"), name), "UnknownIssuer"),
            (
                site.credentials(gateway(), name),
                "spiffe://test.nearpath/node/node-a/gateway is no instance of a function",
            ),
        ] {
            let told = told(of(credentials)).await;
            assert!(told.contains(why), "{told}");
            assert!(told.contains("127.0.0.1:"), "{told}");
        }
    });
}

/// The caller's own list counts, too, and so it does when a session is resumed.
#[test]
fn a_worker_that_was_taken_back() {
    run(async {
        let (site, mut worker) = (Site::new(), Site::new().worker(1));
        let mut caller = site.caller();
        caller.trust = site.trust.without([worker.credentials.name.clone()].into());
        worker = site.worker(1);
        let told = dialed(&caller, &worker).await;
        assert!(told.contains(&format!("the certificate of {} was revoked", worker.credentials.id)), "{told}");
        worker.mint(&caller);
        let told = dialed(&caller, &worker).await;
        assert!(told.contains(&format!("the certificate of {} was revoked", worker.credentials.id)), "{told}");
    });
}

/// A session is not minted for who would not be let in.
#[test]
fn nothing_is_minted_for_a_certificate_out_of_its_time() {
    let site = Site::new();
    for now in [SystemTime::now() - 2 * HOUR, SystemTime::now() + 2 * HOUR] {
        let caller = site.caller_as(site.credentials_at(gateway(), "gateway", now, Duration::from_secs(60)));
        let mut provision = crate::quic::worker::provision(&site, &site.worker(1));
        let minted = mint::for_worker(&mut provision, caller.config.clone(), [127, 0, 0, 1].into());
        assert!(matches!(minted, Err(mint::MintError::NoSession)), "{minted:?}");
        assert!(provision.entries.is_empty());
    }
}

#[test]
fn more_connections_than_a_worker_takes() {
    run(async {
        let (site, runs) = (Site::new(), Rc::new(Cell::new(0)));
        let caller = site.caller();
        let mut worker = Worker { connections: 2, ..site.worker(1) };
        (0..2).for_each(|_| worker.mint(&caller));
        let running = worker.start(counting(&runs));
        let lines = [caller.dial(&running).await, caller.dial(&running).await];
        for line in &lines {
            line.call_whole(post("in"), Early::Never).await.unwrap();
        }
        let with = caller.dial(&running).await;
        assert!(with.is_early());
        let without = site.caller().dial(&running).await;
        assert!(!without.is_early());
        for beyond in [with, without] {
            let told = beyond.call_whole(post("too many"), Early::Allowed).await.unwrap_err().to_string();
            assert!(told.starts_with("not sent: ") && told.contains("this worker has 2 connections"), "{told}");
        }
        assert_eq!(runs.get(), 2, "those beyond did not run");
        lines[0].close();
        while running.endpoint.open_connections() > 1 {
            tokio::task::yield_now().await;
        }
        caller.dial(&running).await.call_whole(post("in"), Early::Never).await.unwrap();
    });
}

/// Who begins and does not go on holds a place, but not for ever.
#[test]
fn a_handshake_that_stops_in_the_middle_is_cut() {
    run(async {
        let site = Site::new();
        let mut worker = site.worker(1).start(counting(&Rc::default()));
        let (caller, now) = (site.caller(), std::time::Instant::now());
        let mut half = mint::Caller::new(caller.config.clone(), &worker.name, worker.addr, now).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in half.step(&[]) {
            socket.send_to(&datagram, worker.addr).unwrap();
        }
        worker.refused.changed().await.unwrap();
        let told = worker.refused.borrow().last.clone();
        assert!(told.contains("the handshake was not complete within 10s"), "{told}");
    });
}

#[test]
fn a_first_flight_into_silence_ends_in_time() {
    run(async {
        let (site, silent) = (Site::new(), std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let (caller, mut worker) = (site.caller(), site.worker(1));
        worker.mint(&caller);
        let (addr, limit) = (silent.local_addr().unwrap(), Duration::from_millis(50));
        let line = caller.dialer().dial(addr, &worker.credentials.name, limit).await.unwrap();
        assert!(line.is_early());
        let (sent, held) =
            tokio::join!(line.call_whole(post(""), Early::Allowed), line.call_whole(post(""), Early::Never));
        assert_eq!(sent.unwrap_err().to_string(), "no answer over UDP within 50ms; it may have run");
        assert_eq!(held.unwrap_err().to_string(), "not sent: no answer over UDP within 50ms");
        assert!(line.is_closed());
    });
}

fn tls(site: &Site, versions: &[&'static rustls::SupportedProtocolVersion]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(site.authority.certificate().clone()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
    let mut tls = builder.with_no_client_auth();
    tls.alpn_protocols = vec![config::ALPN.to_vec()];
    tls
}

/// What anybody can make: it says what it likes, and nobody vouches for it.
fn self_signed(id: SpiffeId, name: &str) -> Credentials {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    params.subject_alt_names.push(rcgen::SanType::URI(id.to_string().try_into().unwrap()));
    let chain = vec![params.self_signed(&key).unwrap().der().clone()];
    Credentials { id, name: name.to_owned(), chain, key: key.serialize_der(), not_after: SystemTime::now() + HOUR }
}
