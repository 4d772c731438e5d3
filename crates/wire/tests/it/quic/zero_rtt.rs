//! First flights to workers that were never contacted.

use http_body_util::BodyExt;
use nearpath_wire::quic::EarlyData;

use crate::quic::fixture::{QuicFixture, echo, post, run};

#[test]
fn a_worker_that_was_never_contacted_gets_a_request_in_the_first_flight() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, mut worker) = (fixture.caller(), fixture.worker(1));
        worker.mint_session(&caller);
        assert_eq!(
            worker.sessions.len(),
            caller.sessions.session_count(&worker.credentials.name)
        );
        let worker = worker.start(echo);
        let connection = caller.dial_running(&worker).await;
        assert!(connection.is_early());
        let answer = connection
            .call_buffered(post("first"), EarlyData::Allowed)
            .await
            .unwrap();
        assert_eq!(answer.headers()["early"], "true");
        assert_eq!(
            answer.into_body().collect().await.unwrap().to_bytes(),
            "first"
        );
        assert_eq!(worker.sessions.use_counts(), (1, 0));
    });
}

#[test]
fn without_a_session_a_call_waits_for_the_handshake() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, worker) = (fixture.caller(), fixture.worker(1).start(echo));
        let connection = caller.dial_running(&worker).await;
        assert!(!connection.is_early());
        let answer = connection
            .call_buffered(post("one"), EarlyData::Allowed)
            .await
            .unwrap();
        assert_eq!(answer.headers()["early"], "false");
    });
}

#[test]
fn a_call_without_permission_waits_for_the_handshake() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, mut worker) = (fixture.caller(), fixture.worker(1));
        worker.mint_session(&caller);
        let worker = worker.start(echo);
        let connection = caller.dial_running(&worker).await;
        let answer = connection
            .call_buffered(post("one"), EarlyData::Never)
            .await
            .unwrap();
        assert_eq!(answer.headers()["early"], "false");
    });
}

#[test]
fn a_first_flight_that_is_not_taken_is_sent_again() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, mut worker) = (fixture.caller(), fixture.worker(1));
        worker.mint_session(&caller);
        worker.sessions.clear(); // a worker without sessions
        let worker = worker.start(echo);
        let connection = caller.dial_running(&worker).await;
        let answer = connection
            .call_buffered(post("again"), EarlyData::Allowed)
            .await
            .unwrap();
        assert_eq!(
            (answer.status(), &answer.headers()["early"]),
            (http::StatusCode::OK, &"false".parse().unwrap())
        );
        assert_eq!(
            answer.into_body().collect().await.unwrap().to_bytes(),
            "again"
        );
        assert_eq!(worker.sessions.use_counts(), (0, 1));
    });
}

#[test]
fn sessions_are_refreshed_after_use() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, mut worker) = (fixture.caller(), fixture.worker(1));
        worker.mint_session(&caller);
        let worker = worker.start(echo);
        for round in 0..5 {
            let connection = caller.dial_running(&worker).await;
            assert!(connection.is_early(), "round {round}");
            let answer = connection
                .call_buffered(post("more"), EarlyData::Allowed)
                .await
                .unwrap();
            assert_eq!(answer.headers()["early"], "true");
            answer.into_body().collect().await.unwrap();
            while caller.sessions.session_count(&worker.name) < 2 {
                tokio::task::yield_now().await; // new sessions arrive after the handshake
            }
            connection.close();
        }
    });
}

#[test]
fn many_workers_are_minted_and_each_knows_only_its_own() {
    run(async {
        let fixture = QuicFixture::new();
        let caller = fixture.caller();
        let mut workers: Vec<_> = (0..20).map(|number| fixture.worker(number)).collect();
        workers
            .iter_mut()
            .for_each(|worker| worker.mint_session(&caller));
        for worker in &workers {
            let running = worker.start(echo);
            let connection = caller.dial_running(&running).await;
            let answer = connection
                .call_buffered(post(""), EarlyData::Allowed)
                .await
                .unwrap();
            assert_eq!(answer.headers()["early"], "true");
        }
    });
}
