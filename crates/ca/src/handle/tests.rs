use std::time::Duration;

use super::*;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;

use futures_util::future::BoxFuture;
use futures_util::poll;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nearpath_wire::zero_rtt::Provision;
use tokio::task::unconstrained;

/// As many instances as may start at once.
const INSTANCES: u64 = 1000;
/// Time for a thousand keys, certificates and sessions with an unoptimised build on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

fn settings() -> IssuerSettings {
    IssuerSettings {
        node: "a".to_owned(),
        member_name: None,
        gateway_ip: [127, 0, 0, 1].into(),
        lifetime: Duration::from_secs(24 * 3600),
    }
}

/// A handle without a thread: the test serves its jobs.
fn handle_without_thread() -> (IssuerHandle, Receiver<IssuerCommand>) {
    let (jobs, receiver) = channel();
    (IssuerHandle::new(jobs, Arc::default()), receiver)
}

fn issuer() -> (Issuer, watch::Receiver<CallerConfig>) {
    Issuer::new(settings(), TimePoint::now()).unwrap()
}

/// Unconstrained, since these tests poll more futures in one task than tokio's cooperative budget
/// allows.
fn issue(handle: &IssuerHandle, id: u64) -> BoxFuture<'static, Result<InstanceIdentity, String>> {
    Box::pin(unconstrained(
        handle.issue("echo".parse().unwrap(), InstanceId(id)),
    ))
}

fn issue_requests(jobs: impl Iterator<Item = IssuerCommand>) -> impl Iterator<Item = IssueRequest> {
    jobs.filter_map(|job| {
        if let IssuerCommand::Issue(request) = job {
            Some(request)
        } else {
            None
        }
    })
}

#[tokio::test]
async fn a_thousand_simultaneous_starts_are_served_in_order() {
    let (handle, _caller) = IssuerHandle::start(settings()).unwrap();
    let requests = FuturesUnordered::new();
    for id in 0..INSTANCES {
        let issued = issue(&handle, id);
        requests.push(tokio::spawn(async move { (id, issued.await.unwrap()) }));
    }
    let all = tokio::time::timeout(
        TEST_TIMEOUT,
        requests.map(Result::unwrap).collect::<Vec<_>>(),
    )
    .await
    .unwrap();
    for (turn, (id, mut identity)) in (0..).zip(all) {
        assert_eq!(id, turn);
        assert_eq!(*identity.name, format!("{}.up.nearpath", InstanceId(id)));
        let frame = identity
            .frames
            .try_recv()
            .expect("the first frame is there at once");
        let provision = Provision::decode(&frame[4..]).unwrap();
        assert_eq!(provision.credentials.name, *identity.name);
        assert!(!provision.sessions.is_empty(), "with a session");
    }
}

#[tokio::test]
async fn queued_requests_are_bounded_and_the_others_follow_in_order() {
    let (handle, jobs) = handle_without_thread();
    let mut requests: VecDeque<_> = (0..INSTANCES).map(|id| issue(&handle, id)).collect();
    let (mut queued, mut served) = (VecDeque::new(), 0);
    while !requests.is_empty() {
        for request in &mut requests {
            assert!(poll!(request).is_pending());
        }
        queued.extend(issue_requests(jobs.try_iter()));
        assert_eq!(queued.len(), requests.len().min(MAX_QUEUED_INSTANCES));
        let IssueRequest {
            instance,
            reply,
            permit,
            ..
        } = queued.pop_front().unwrap();
        assert_eq!(instance, InstanceId(served));
        drop((reply.send(Err("refused by the test".to_owned())), permit));
        requests.pop_front().unwrap().await.unwrap_err();
        served += 1;
    }
    assert_eq!(served, INSTANCES);
}

#[tokio::test]
async fn a_request_dropped_before_its_turn_is_not_served() {
    let ((handle, jobs), (mut issuer, callers)) = (handle_without_thread(), issuer());
    let (mut dropped, mut kept) = (issue(&handle, 1), issue(&handle, 2));
    assert!(poll!(&mut dropped).is_pending() && poll!(&mut kept).is_pending());
    drop(dropped);
    let limit = MAX_QUEUED_INSTANCES;
    assert_eq!(
        handle.permits.available_permits(),
        limit - 2,
        "its permit is held until its turn"
    );
    assert!(thread::run_once(&mut issuer, &jobs));
    assert_eq!(issuer.known_instances(), [InstanceId(2)]);
    assert!(
        !callers.has_changed().unwrap(),
        "nothing was issued that needs revocation"
    );
    assert!(matches!(poll!(kept), Poll::Ready(Ok(_))));
    assert_eq!(handle.permits.available_permits(), limit);
}

#[tokio::test]
async fn an_identity_nobody_received_is_revoked() {
    let ((handle, jobs), (mut issuer, callers)) = (handle_without_thread(), issuer());
    let mut dropped = issue(&handle, 1);
    assert!(poll!(&mut dropped).is_pending());
    assert!(thread::run_once(&mut issuer, &jobs));
    assert_eq!(issuer.known_instances(), [InstanceId(1)]);
    drop(dropped);
    assert!(thread::run_once(&mut issuer, &jobs));
    assert_eq!(issuer.known_instances(), []);
    assert!(callers.has_changed().unwrap(), "its certificate is revoked");
}
