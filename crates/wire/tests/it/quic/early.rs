//! The first flight to workers that were never contacted.

use http_body_util::BodyExt;
use nearpath_wire::quic::Early;

use crate::quic::site::{Site, echo, post, run};

#[test]
fn a_worker_that_was_never_contacted_gets_a_request_in_the_first_flight() {
    run(async {
        let site = Site::new();
        let (caller, mut worker) = (site.caller(), site.worker(1));
        worker.mint(&caller);
        assert_eq!(worker.entries.len(), caller.sessions.left(&worker.credentials.name));
        let worker = worker.start(echo);
        let line = caller.dial(&worker).await;
        assert!(line.is_early());
        let answer = line.call_whole(post("first"), Early::Allowed).await.unwrap();
        assert_eq!(answer.headers()["early"], "true");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "first");
        assert_eq!(worker.register.counts(), (1, 0));
    });
}

#[test]
fn without_a_session_it_waits_for_the_handshake() {
    run(async {
        let site = Site::new();
        let (caller, worker) = (site.caller(), site.worker(1).start(echo));
        let line = caller.dial(&worker).await;
        assert!(!line.is_early());
        let answer = line.call_whole(post("one"), Early::Allowed).await.unwrap();
        assert_eq!(answer.headers()["early"], "false");
    });
}

#[test]
fn who_does_not_allow_it_waits() {
    run(async {
        let site = Site::new();
        let (caller, mut worker) = (site.caller(), site.worker(1));
        worker.mint(&caller);
        let worker = worker.start(echo);
        let line = caller.dial(&worker).await;
        let answer = line.call_whole(post("one"), Early::Never).await.unwrap();
        assert_eq!(answer.headers()["early"], "false");
    });
}

#[test]
fn a_first_flight_that_is_not_taken_is_sent_again() {
    run(async {
        let site = Site::new();
        let (caller, mut worker) = (site.caller(), site.worker(1));
        worker.mint(&caller);
        worker.entries.clear(); // a worker that remembers nothing
        let worker = worker.start(echo);
        let line = caller.dial(&worker).await;
        let answer = line.call_whole(post("again"), Early::Allowed).await.unwrap();
        assert_eq!((answer.status(), &answer.headers()["early"]), (http::StatusCode::OK, &"false".parse().unwrap()));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "again");
        assert_eq!(worker.register.counts(), (0, 1));
    });
}

#[test]
fn sessions_are_refreshed_after_use() {
    run(async {
        let site = Site::new();
        let (caller, mut worker) = (site.caller(), site.worker(1));
        worker.mint(&caller);
        let worker = worker.start(echo);
        for round in 0..5 {
            let line = caller.dial(&worker).await;
            assert!(line.is_early(), "round {round}");
            let answer = line.call_whole(post("more"), Early::Allowed).await.unwrap();
            assert_eq!(answer.headers()["early"], "true");
            answer.into_body().collect().await.unwrap();
            while caller.sessions.left(&worker.name) < 2 {
                tokio::task::yield_now().await; // new ones come after the handshake
            }
            line.close();
        }
    });
}

#[test]
fn many_workers_are_minted_and_each_knows_only_its_own() {
    run(async {
        let site = Site::new();
        let caller = site.caller();
        let mut workers: Vec<_> = (0..20).map(|number| site.worker(number)).collect();
        workers.iter_mut().for_each(|worker| worker.mint(&caller));
        for worker in &workers {
            let running = worker.start(echo);
            let line = caller.dial(&running).await;
            let answer = line.call_whole(post(""), Early::Allowed).await.unwrap();
            assert_eq!(answer.headers()["early"], "true");
        }
    });
}
