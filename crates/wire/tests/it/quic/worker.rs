//! A worker and its node: provisions while it serves, and its end.

use std::net::{Ipv4Addr, UdpSocket};

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::quic::{
    CallerConnection, EarlyData, QuicCallError, QuicWorker, QuicWorkerError, ServedCall,
};
use nearpath_wire::zero_rtt::{Provision, TokenKey};
use tokio::sync::{mpsc, oneshot};

use crate::quic::fixture::{self, DOMAIN, LIMIT, QuicFixture, TestCaller, echo, post, run};

pub(crate) fn provision_for(fixture: &QuicFixture, worker: &fixture::TestWorkerSpec) -> Provision {
    Provision {
        credentials: worker.credentials.clone(),
        authorities: vec![fixture.authority.certificate().clone()],
        callers: vec!["friend".parse().unwrap()],
        revoked: Vec::new(),
        foreign: Vec::new(),
        token_key: TokenKey([7; 32]),
        sessions: worker.sessions.clone(),
    }
}

fn bind_udp() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

async fn dial_worker<H, F, B>(
    caller: &TestCaller,
    worker: &QuicWorker<H>,
    name: &str,
) -> CallerConnection
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<nearpath_wire::BoxError>,
{
    caller
        .dialer()
        .dial_worker(worker.local_addr().unwrap(), name, LIMIT)
        .await
        .unwrap()
}

fn friend_caller(fixture: &QuicFixture) -> TestCaller {
    fixture.caller_as(fixture.credentials(
        SpiffeId::for_instance(DOMAIN, "friend".parse().unwrap(), InstanceId(5)),
        "i5",
    ))
}

#[test]
fn sessions_that_come_later_are_used() {
    run(async {
        let fixture = QuicFixture::new();
        let (first, second, mut one) =
            (fixture.caller(), friend_caller(&fixture), fixture.worker(1));
        one.mint_session(&first);
        let mut worker =
            QuicWorker::start(bind_udp(), provision_for(&fixture, &one), echo).unwrap();
        one.sessions.clear();
        one.mint_session(&second);
        worker
            .apply_provision(provision_for(&fixture, &one))
            .unwrap();
        for caller in [first, second] {
            let connection = dial_worker(&caller, &worker, &one.credentials.name).await;
            let answer = connection
                .call_buffered(post(""), EarlyData::Allowed)
                .await
                .unwrap();
            assert_eq!(answer.headers()["early"], "true");
        }
    });
}

#[test]
fn a_revoked_peer_loses_its_connection() {
    run(async {
        let fixture = QuicFixture::new();
        let (gateway, friend, one) = (fixture.caller(), friend_caller(&fixture), fixture.worker(1));
        let mut worker =
            QuicWorker::start(bind_udp(), provision_for(&fixture, &one), echo).unwrap();
        let lines = [
            dial_worker(&gateway, &worker, &one.credentials.name).await,
            dial_worker(&friend, &worker, &one.credentials.name).await,
        ];
        for connection in &lines {
            connection
                .call_buffered(post(""), EarlyData::Allowed)
                .await
                .unwrap();
        }
        worker
            .apply_provision(Provision {
                callers: Vec::new(),
                ..provision_for(&fixture, &one)
            })
            .unwrap();
        let end = lines[1].connection().closed().await;
        assert!(end.to_string().contains("no edge leads from"), "{end}");
        lines[0]
            .call_buffered(post(""), EarlyData::Allowed)
            .await
            .unwrap();
    });
}

#[test]
fn a_new_certificate_is_used_from_then_on() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, one) = (fixture.caller(), fixture.worker(1));
        let mut worker =
            QuicWorker::start(bind_udp(), provision_for(&fixture, &one), echo).unwrap();
        let next = fixture.credentials(one.credentials.id.clone(), &one.credentials.name);
        worker
            .apply_provision(Provision {
                credentials: next.clone(),
                ..provision_for(&fixture, &one)
            })
            .unwrap();
        let connection = dial_worker(&caller, &worker, &one.credentials.name).await;
        connection
            .call_buffered(post(""), EarlyData::Allowed)
            .await
            .unwrap();
        let presented = connection.connection().peer_identity().unwrap();
        let presented = presented
            .downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>()
            .unwrap();
        assert_eq!(*presented, next.chain);
    });
}

#[test]
fn a_provision_for_another_is_refused_and_changes_nothing() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, one, two) = (fixture.caller(), fixture.worker(1), fixture.worker(2));
        let mut worker =
            QuicWorker::start(bind_udp(), provision_for(&fixture, &one), echo).unwrap();
        assert!(matches!(
            worker.apply_provision(provision_for(&fixture, &two)),
            Err(QuicWorkerError::WrongName { .. })
        ));
        let connection = dial_worker(&caller, &worker, &one.credentials.name).await;
        connection
            .call_buffered(post(""), EarlyData::Allowed)
            .await
            .unwrap();
    });
}

#[test]
fn a_worker_stops_when_its_calls_have_ended() {
    run(async {
        let fixture = QuicFixture::new();
        let (caller, one) = (fixture.caller(), fixture.worker(1));
        let (began, mut beginning) = mpsc::unbounded_channel();
        let handler = move |_: ServedCall| {
            let (go, wait) = oneshot::channel();
            began.send(go).unwrap();
            async move {
                wait.await.unwrap();
                Response::new(Full::new(Bytes::from_static(b"whole")))
            }
        };
        let worker = QuicWorker::start(bind_udp(), provision_for(&fixture, &one), handler).unwrap();
        let connection = dial_worker(&caller, &worker, &one.credentials.name).await;
        let calling = connection.clone();
        let open = tokio::task::spawn_local(async move {
            calling.call_buffered(post(""), EarlyData::Allowed).await
        });
        let go: oneshot::Sender<()> = beginning.recv().await.unwrap();
        let addr = worker.local_addr().unwrap();
        let stopping = tokio::task::spawn_local(async move { worker.stop().await });
        tokio::task::yield_now().await;
        let new = caller
            .dialer()
            .dial_worker(addr, &one.credentials.name, LIMIT)
            .await
            .unwrap();
        assert!(
            new.is_early(),
            "it has a session, and does not know that the worker stops"
        );
        for connection in [&connection, &new] {
            let late = connection.call_buffered(post(""), EarlyData::Allowed).await;
            assert!(matches!(late, Err(QuicCallError::NotRun(_))), "{late:?}");
        }
        go.send(()).unwrap();
        let answer = open.await.unwrap().unwrap();
        assert_eq!(
            answer.into_body().collect().await.unwrap().to_bytes(),
            "whole"
        );
        stopping.await.unwrap();
    });
}
