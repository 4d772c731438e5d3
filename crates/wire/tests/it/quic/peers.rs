//! Who is not let in, and is told why.

use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::Refusal;
use nearpath_wire::quic::{Answer, Call, CallError, DialError, Early, Line};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::quic::site::{Caller, DOMAIN, LIMIT, Running, Site, echo, post, run};

/// What a caller who is not wanted learns: at the handshake, or with its first call.
async fn refusal(caller: &Caller, worker: &Running) -> String {
    match caller.dialer().dial(worker.addr, &worker.name, LIMIT).await {
        Err(error) => error.to_string(),
        Ok(line) => {
            let error = line.call_whole(post("in"), Early::Allowed).await.unwrap_err();
            format!("{error}: {:?}", line.connection().close_reason())
        }
    }
}

fn gateway() -> SpiffeId {
    SpiffeId::gateway(DOMAIN, "node-a")
}

#[test]
fn a_certificate_of_another_authority() {
    run(async {
        let (site, other) = (Site::new(), Site::new());
        let worker = site.worker(1).start(echo);
        let mut caller = other.caller();
        assert!(
            refusal(&caller, &worker).await.contains("invalid peer certificate"),
            "it does not trust the worker either"
        );
        let credentials = other.credentials(gateway(), "gateway");
        caller = site.caller_as(credentials);
        let told = refusal(&caller, &worker).await;
        assert!(told.contains("UnknownIssuer") || told.contains("certificate"), "{told}");
    });
}

#[test]
fn an_expired_certificate() {
    run(async {
        let site = Site::new();
        let worker = site.worker(1).start(echo);
        let long_ago = SystemTime::now() - Duration::from_secs(7200);
        let old = site.credentials_at(gateway(), "gateway", long_ago, Duration::from_secs(60));
        let told = refusal(&site.caller_as(old), &worker).await;
        assert!(told.to_lowercase().contains("expired"), "{told}");
    });
}

#[test]
fn a_session_does_not_outlive_its_certificate() {
    run(async {
        let site = Site::new();
        let (short, now) = (Duration::from_secs(2), SystemTime::now());
        let caller = site.caller_as(site.credentials_at(gateway(), "gateway", now, short));
        let mut worker = site.worker(1);
        worker.mint(&caller);
        let worker = worker.start(echo);
        tokio::time::sleep(Duration::from_secs(4)).await; // certificates count in seconds
        let told = refusal(&caller, &worker).await;
        assert!(told.contains("the certificate of spiffe://test.nearpath/node/node-a/gateway has expired"), "{told}");
    });
}

#[test]
fn a_certificate_that_was_taken_back() {
    run(async {
        let site = Site::new();
        let caller = site.caller_as(site.credentials(gateway(), "gateway"));
        let mut worker = site.worker(1);
        worker.mint(&caller);
        worker.trust = site.trust.without(["gateway".to_owned()].into());
        let told = refusal(&caller, &worker.start(echo)).await;
        assert!(told.contains("was revoked"), "{told}");
    });
}

#[test]
fn a_function_without_an_edge() {
    run(async {
        let site = Site::new();
        let function = |name: &str, number| SpiffeId::instance(DOMAIN, name.parse().unwrap(), InstanceId(number));
        let mut worker = site.worker(1);
        worker.trust = site.trust.called_by(["friend".parse().unwrap()].into());
        let worker = worker.start(echo);
        let stranger = site.caller_as(site.credentials(function("stranger", 8), "i8"));
        let told = refusal(&stranger, &worker).await;
        assert!(
            told.contains("no edge leads from spiffe://test.nearpath/ns/openfaas-fn/fn/stranger/instance/8"),
            "{told}"
        );
        for id in [function("friend", 9), gateway()] {
            let line = site.caller_as(site.credentials(id, "i9")).dial(&worker).await;
            assert!(line.call_whole(post("in"), Early::Allowed).await.unwrap().status().is_success());
        }
    });
}

#[test]
fn another_trust_domain_of_the_same_authority() {
    run(async {
        let site = Site::new();
        let foreign = site.authority.issue(
            nearpath_wire::identity::Request::new().unwrap().csr(),
            &SpiffeId::gateway("elsewhere", "node"),
            "gateway",
            SystemTime::now(),
            LIMIT,
        );
        assert!(foreign.unwrap_err().to_string().contains("not for elsewhere"));
        let peer = site.credentials(gateway(), "gateway");
        let trust = nearpath_wire::identity::Trust::new("elsewhere", &[site.authority.certificate().clone()]).unwrap();
        assert_eq!(trust.admit(&peer.chain, SystemTime::now()), Err(Refusal::TrustDomain(gateway())));
    });
}

#[test]
fn a_worker_that_is_not_the_one_that_was_called() {
    run(async {
        let site = Site::new();
        let worker = site.worker(1).start(echo);
        let dialed = site.caller().dialer().dial(worker.addr, "i2.test.nearpath", LIMIT).await;
        assert!(matches!(dialed.unwrap_err(), DialError::Handshake { .. }));
    });
}

#[test]
fn nobody_there() {
    run(async {
        let site = Site::new();
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let dialed = site.caller().dialer().dial(silent.local_addr().unwrap(), "i1", Duration::from_millis(50)).await;
        assert!(matches!(dialed.unwrap_err(), DialError::Timeout { .. }));
    });
}

/// Answers `/slow` when it is let.
fn slow(go: &Rc<Notify>) -> impl Fn(Call) -> Pin<Box<dyn Future<Output = Response<Full<Bytes>>>>> + 'static {
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

fn held() -> http::Request<Bytes> {
    http::Request::post("/slow").body(Bytes::new()).unwrap()
}

/// A call that began in time, on a connection whose caller's certificate has ended since.
async fn outlived(site: &Site, worker: &Running) -> (Line, JoinHandle<Result<Response<Answer>, CallError>>) {
    let brief = site.credentials_at(gateway(), "gateway", SystemTime::now(), Duration::from_secs(2));
    let line = site.caller_as(brief).dial(worker).await;
    let open = line.clone();
    let begun = tokio::task::spawn_local(async move { open.call_whole(held(), Early::Never).await });
    line.call_whole(post("in time"), Early::Never).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await; // certificates count in seconds
    let late = line.call_whole(post("late"), Early::Never).await.unwrap_err();
    assert!(matches!(late, CallError::Unseen(_)), "it is safe to make it with another certificate: {late}");
    (line, begun)
}

#[test]
fn a_call_outlives_its_callers_certificate_and_no_other_begins() {
    run(async {
        let (site, go) = (Site::new(), Rc::new(Notify::new()));
        let worker = site.worker(1).start(slow(&go));
        let (line, begun) = outlived(&site, &worker).await;
        go.notify_one();
        assert_eq!(begun.await.unwrap().unwrap().status(), 200);
        assert!(!line.is_closed());
    });
}

#[test]
fn who_is_taken_back_does_not_even_finish_what_it_began_before_its_certificate_ended() {
    run(async {
        let (site, go) = (Site::new(), Rc::new(Notify::new()));
        let worker = site.worker(1).start(slow(&go));
        let (_line, begun) = outlived(&site, &worker).await;
        worker.admit(site.trust.without(["gateway".to_owned()].into()));
        let told = begun.await.unwrap().unwrap_err();
        assert!(matches!(&told, CallError::Broken(_)) && told.to_string().contains("was revoked"), "{told}");
    });
}
