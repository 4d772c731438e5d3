//! A worker and its node: what it is given while it serves, and how it stops.

use std::net::{Ipv4Addr, UdpSocket};

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::early::{Provision, TokenKey};
use nearpath_wire::quic::{Call, CallError, Early, Line, Worker, WorkerError};
use tokio::sync::{mpsc, oneshot};

use crate::quic::site::{self, Caller, DOMAIN, LIMIT, Site, echo, post, run};

pub(crate) fn provision(site: &Site, worker: &site::Worker) -> Provision {
    Provision {
        credentials: worker.credentials.clone(),
        authorities: vec![site.authority.certificate().clone()],
        callers: vec!["friend".parse().unwrap()],
        revoked: Vec::new(),
        key: TokenKey([7; 32]),
        entries: worker.entries.clone(),
    }
}

fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

async fn dial<H, F, B>(caller: &Caller, worker: &Worker<H>, name: &str) -> Line
where
    H: Fn(Call) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<nearpath_wire::BoxError>,
{
    caller.dialer().dial(worker.addr().unwrap(), name, LIMIT).await.unwrap()
}

fn friend(site: &Site) -> Caller {
    site.caller_as(site.credentials(SpiffeId::instance(DOMAIN, "friend".parse().unwrap(), InstanceId(5)), "i5"))
}

#[test]
fn sessions_that_come_later_are_used() {
    run(async {
        let site = Site::new();
        let (first, second, mut one) = (site.caller(), friend(&site), site.worker(1));
        one.mint(&first);
        let mut worker = Worker::start(socket(), provision(&site, &one), echo).unwrap();
        one.entries.clear();
        one.mint(&second);
        worker.update(provision(&site, &one)).unwrap();
        for caller in [first, second] {
            let line = dial(&caller, &worker, &one.credentials.name).await;
            let answer = line.call_whole(post(""), Early::Allowed).await.unwrap();
            assert_eq!(answer.headers()["early"], "true");
        }
    });
}

#[test]
fn who_is_taken_back_loses_its_connection() {
    run(async {
        let site = Site::new();
        let (gateway, friend, one) = (site.caller(), friend(&site), site.worker(1));
        let mut worker = Worker::start(socket(), provision(&site, &one), echo).unwrap();
        let lines =
            [dial(&gateway, &worker, &one.credentials.name).await, dial(&friend, &worker, &one.credentials.name).await];
        for line in &lines {
            line.call_whole(post(""), Early::Allowed).await.unwrap();
        }
        worker.update(Provision { callers: Vec::new(), ..provision(&site, &one) }).unwrap();
        let end = lines[1].connection().closed().await;
        assert!(end.to_string().contains("no edge leads from"), "{end}");
        lines[0].call_whole(post(""), Early::Allowed).await.unwrap();
    });
}

#[test]
fn a_new_certificate_is_shown_from_then_on() {
    run(async {
        let site = Site::new();
        let (caller, one) = (site.caller(), site.worker(1));
        let mut worker = Worker::start(socket(), provision(&site, &one), echo).unwrap();
        let next = site.credentials(one.credentials.id.clone(), &one.credentials.name);
        worker.update(Provision { credentials: next.clone(), ..provision(&site, &one) }).unwrap();
        let line = dial(&caller, &worker, &one.credentials.name).await;
        line.call_whole(post(""), Early::Allowed).await.unwrap();
        let shown = line.connection().peer_identity().unwrap();
        let shown = shown.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().unwrap();
        assert_eq!(*shown, next.chain);
    });
}

#[test]
fn a_provision_for_another_is_refused_and_changes_nothing() {
    run(async {
        let site = Site::new();
        let (caller, one, two) = (site.caller(), site.worker(1), site.worker(2));
        let mut worker = Worker::start(socket(), provision(&site, &one), echo).unwrap();
        assert!(matches!(worker.update(provision(&site, &two)), Err(WorkerError::Name { .. })));
        let line = dial(&caller, &worker, &one.credentials.name).await;
        line.call_whole(post(""), Early::Allowed).await.unwrap();
    });
}

#[test]
fn it_stops_when_its_calls_have_ended() {
    run(async {
        let site = Site::new();
        let (caller, one) = (site.caller(), site.worker(1));
        let (began, mut beginning) = mpsc::unbounded_channel();
        let handler = move |_: Call| {
            let (go, wait) = oneshot::channel();
            began.send(go).unwrap();
            async move {
                wait.await.unwrap();
                Response::new(Full::new(Bytes::from_static(b"whole")))
            }
        };
        let worker = Worker::start(socket(), provision(&site, &one), handler).unwrap();
        let line = dial(&caller, &worker, &one.credentials.name).await;
        let calling = line.clone();
        let open = tokio::task::spawn_local(async move { calling.call_whole(post(""), Early::Allowed).await });
        let go: oneshot::Sender<()> = beginning.recv().await.unwrap();
        let addr = worker.addr().unwrap();
        let stopping = tokio::task::spawn_local(async move { worker.stop().await });
        tokio::task::yield_now().await;
        let new = caller.dialer().dial(addr, &one.credentials.name, LIMIT).await.unwrap();
        assert!(new.is_early(), "it has a session, and does not know that the worker stops");
        for line in [&line, &new] {
            let late = line.call_whole(post(""), Early::Allowed).await;
            assert!(matches!(late, Err(CallError::Unseen(_))), "{late:?}");
        }
        go.send(()).unwrap();
        let answer = open.await.unwrap().unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "whole");
        stopping.await.unwrap();
    });
}
