use super::*;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;

use futures_util::poll;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nearpath_wire::early::Provision;
use tokio::task::unconstrained;

/// As many as may start at once.
const INSTANCES: u64 = 1000;
/// A thousand keys, certificates and sessions of an unoptimised build on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

fn terms() -> Terms {
    Terms { node: "a".to_owned(), from: [127, 0, 0, 1].into(), lifetime: Duration::from_secs(24 * 3600) }
}

/// A desk whose jobs nobody does but the test.
fn unmanned() -> (Desk, Receiver<Job>) {
    let (jobs, asked) = channel();
    (Desk::new(jobs), asked)
}

fn office() -> (Office, watch::Receiver<Caller>) {
    let now = Moment { at: Instant::now(), wall: SystemTime::now() };
    Office::open(terms(), now).unwrap()
}

/// As a task of its own would: tests poll more of them in one task than tokio lets do something.
fn ask(desk: &Desk, id: u64) -> BoxFuture<'static, Result<Identity, String>> {
    Box::pin(unconstrained(desk.issue("echo".parse().unwrap(), InstanceId(id))))
}

/// Who asks in these jobs.
fn askers(jobs: impl Iterator<Item = Job>) -> impl Iterator<Item = Asked> {
    jobs.filter_map(|job| if let Job::Issue(asked) = job { Some(asked) } else { None })
}

#[tokio::test]
async fn a_thousand_that_start_at_once_get_identities_in_the_order_of_asking() {
    let (desk, _caller) = open(terms()).unwrap();
    let asking = FuturesUnordered::new();
    for id in 0..INSTANCES {
        let issued = ask(&desk, id);
        asking.push(tokio::spawn(async move { (id, issued.await.unwrap()) }));
    }
    let all = tokio::time::timeout(LIMIT, asking.map(Result::unwrap).collect::<Vec<_>>()).await.unwrap();
    for (turn, (id, mut identity)) in (0..).zip(all) {
        assert_eq!(id, turn);
        assert_eq!(*identity.name, format!("{}.up.nearpath", InstanceId(id)));
        let frame = identity.frames.try_recv().expect("the first frame is there at once");
        let provision = Provision::read(&frame[4..]).unwrap();
        assert_eq!(provision.credentials.name, *identity.name);
        assert!(!provision.entries.is_empty(), "with a session");
    }
}

#[tokio::test]
async fn no_more_than_have_a_place_are_in_the_office_and_the_others_follow_in_turn() {
    let (desk, jobs) = unmanned();
    let mut asking: VecDeque<_> = (0..INSTANCES).map(|id| ask(&desk, id)).collect();
    let (mut inside, mut served) = (VecDeque::new(), 0);
    while !asking.is_empty() {
        for one in &mut asking {
            assert!(poll!(one).is_pending());
        }
        inside.extend(askers(jobs.try_iter()));
        assert_eq!(inside.len(), asking.len().min(WAITING));
        let Asked { instance, answer, place, .. } = inside.pop_front().unwrap();
        assert_eq!(instance, InstanceId(served));
        drop((answer.send(Err("none today".to_owned())), place));
        asking.pop_front().unwrap().await.unwrap_err();
        served += 1;
    }
    assert_eq!(served, INSTANCES);
}

#[tokio::test]
async fn who_is_gone_before_its_turn_is_not_minted_for() {
    let ((desk, jobs), (mut office, callers)) = (unmanned(), office());
    let (mut ends, mut stays) = (ask(&desk, 1), ask(&desk, 2));
    assert!(poll!(&mut ends).is_pending() && poll!(&mut stays).is_pending());
    drop(ends);
    assert_eq!(desk.places.available_permits(), WAITING - 2, "its place is taken until its turn");
    assert!(thread::turn(&mut office, &jobs));
    assert_eq!(office.known(), [InstanceId(2)]);
    assert!(!callers.has_changed().unwrap(), "nobody has a certificate that is taken back");
    assert!(matches!(poll!(stays), Poll::Ready(Ok(_))));
    assert_eq!(desk.places.available_permits(), WAITING);
}

#[tokio::test]
async fn who_is_gone_before_it_hears_of_its_identity_is_forgotten() {
    let ((desk, jobs), (mut office, callers)) = (unmanned(), office());
    let mut ends = ask(&desk, 1);
    assert!(poll!(&mut ends).is_pending());
    assert!(thread::turn(&mut office, &jobs));
    assert_eq!(office.known(), [InstanceId(1)]);
    drop(ends);
    assert!(thread::turn(&mut office, &jobs));
    assert_eq!(office.known(), []);
    assert!(callers.has_changed().unwrap(), "its certificate is taken back");
}
