//! Costs of an idle mode, and behaviour under overload.

use std::time::Instant;

use nearpath_domain::node_side::DomainSettings;
use nearpath_domain::{CallDestination, CallRequest, CallResponse, UnsentReason};
use nearpath_shm::{Envelope, MessageDraft, MessageKind};
use nearpath_types::InstanceId;

use super::node::{
    ChildProcess, DeliveryMode, TEST_TIMEOUT, TestNode, function, knows, knows_async,
};
use super::stranger::pair;

pub(crate) fn backpressure_loses_no_event(mode: DeliveryMode) {
    const EVENTS: u32 = 3000;
    let node = TestNode::with(
        mode,
        DomainSettings {
            ring_capacity: 16,
            ..DomainSettings::named("small")
        },
    );
    node.edges(&[("a", "b")]);
    let ((seen, sees), (go, goes)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let mut full = 0;
    let b = node.serve(2, "b", move |_, incoming| {
        let _ = goes.recv(); // the first one waits until the ring is full, all others not at all
        seen.send(u32::from_le_bytes(incoming.body[..].try_into().unwrap()))
            .unwrap();
        CallResponse::default()
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let (to, mut go) = (function("b"), Some(go));
    for n in 0..EVENTS {
        let request = CallRequest {
            body: n.to_le_bytes().to_vec().into(),
            ..CallRequest::default()
        };
        loop {
            match a.send_event(CallDestination::Function(&to), &request) {
                Ok(()) => break,
                Err(UnsentReason::NoCredit) => {
                    full += 1;
                    drop(go.take());
                }
                Err(why) => panic!("{why}"),
            }
        }
    }
    for n in 0..EVENTS {
        assert_eq!(
            sees.recv_timeout(TEST_TIMEOUT).unwrap(),
            n,
            "each once, in order"
        );
    }
    assert!(full > 0, "the ring was full while nobody took anything");
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
}

/// A process that has answered some calls and now waits for more.
fn idle_process(node: &TestNode) -> ChildProcess {
    node.edges(&[("a", "echo")]);
    let process = node.process(2, "echo", "echo");
    let mut a = node.caller(1, "a");
    knows(&mut a, "echo");
    for _ in 0..100 {
        assert_eq!(
            a.call(
                CallDestination::Function(&function("echo")),
                &CallRequest::default()
            )
            .unwrap()
            .status,
            200
        );
    }
    drop(a);
    node.until("only it is left", |usage| {
        usage.endpoints == 1 && usage.channels == 0
    });
    process
}

/// Over all threads: how often they were put on a processor (`/proc/PID/task/TID/schedstat`, third
/// number).
fn runs(process: &ChildProcess) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.child.id())).unwrap();
    let of = |path: std::path::PathBuf| std::fs::read_to_string(path.join("schedstat")).unwrap();
    threads
        .map(|thread| {
            of(thread.unwrap().path())
                .split_whitespace()
                .nth(2)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

pub(crate) fn an_idle_endpoint_never_runs(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let process = idle_process(&node);
    // An endpoint looks around once in 10 s by itself; whoever polls or is woken for nothing runs
    // hundreds of times meanwhile.
    let counted = || {
        let before = runs(&process);
        // What is measured, not a wait for something
        std::thread::sleep(std::time::Duration::from_millis(300));
        runs(&process) - before
    };
    let least = (0..5).map(|_| counted()).min().unwrap();
    assert!(least <= 2, "an idle party ran {least} times in 300 ms");
    node.stop();
}

/// The control of [`an_idle_endpoint_never_runs`]: the measure sees an endpoint that does not
/// sleep.
pub(crate) fn a_polling_endpoint_runs_all_the_time(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let process = idle_process(&node);
    let (before, start) = (runs(&process), Instant::now());
    let cpu = || std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let ticks = || {
        cpu()
            .rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .skip(11)
            .take(2)
            .map(|n| n.parse::<u64>().unwrap())
            .sum()
    };
    let spent: u64 = ticks();
    while runs(&process) < before + 100 && ticks() < spent + 20 {
        assert!(start.elapsed() < TEST_TIMEOUT, "it sleeps");
        std::thread::yield_now();
    }
    node.stop();
}

pub(crate) fn slots_are_reclaimed_after_a_death_between_push_and_send(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    let (mut a, raw, mut end) = pair(&node, mode);
    let pending = a
        .begin_call(
            CallDestination::Function(&function("b")),
            &CallRequest::default(),
        )
        .unwrap();
    let call = raw.receive(&mut end);
    // An answer in parts without an end: its last act is a push without a wakeup.
    for _ in 0..3 {
        let draft = MessageDraft::new(raw.member.claim_slot(256).unwrap());
        end.send_message(draft.finish(Envelope::new(MessageKind::Part, call.envelope().call)))
            .unwrap();
    }
    std::mem::forget((call, raw.member.claim_slot(4096).unwrap())); // the dead release nothing
    drop((raw, end));
    assert!(a.wait_response(pending).is_err());
    node.until("all slots are back", |usage| {
        usage.slots == 0 && usage.channels == 0
    });
    node.hub.remove_instance(InstanceId(2));
    node.stop();
}

/// Events have no answers that would bring credit back: who waits for it is woken when some have
/// been taken.
pub(crate) fn credit_for_events_is_returned(mode: DeliveryMode) {
    let node = TestNode::with(
        mode,
        DomainSettings {
            ring_capacity: 16,
            ..DomainSettings::named("small")
        },
    );
    node.edges(&[("a", "b")]);
    let (taken, takes) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let b = node.serve(2, "b", move |_, _| {
        let _ = taken.send(());
        let _ = goes.recv();
        CallResponse::default()
    });
    node.gateway(|endpoint| async move {
        knows_async(&endpoint, "b").await;
        let id = function("b");
        let notify =
            || endpoint.send_event(CallDestination::Function(&id), &CallRequest::default());
        notify().unwrap();
        tokio::task::yield_now().await; // the driver rings
        takes.recv_timeout(TEST_TIMEOUT).unwrap();
        while notify().is_ok() {} // its endpoint is in the handler, and takes nothing
        assert_eq!(notify().unwrap_err(), UnsentReason::NoCredit);
        let waits = tokio::task::spawn_local({
            let (endpoint, id) = (endpoint.clone(), id.clone());
            async move { endpoint.wait_credit(&id).await }
        });
        for _ in 0..10 {
            tokio::task::yield_now().await; // the driver sleeps after that
        }
        assert!(!waits.is_finished());
        drop(go);
        tokio::time::timeout(TEST_TIMEOUT, waits)
            .await
            .expect("nobody rang")
            .unwrap();
        notify().unwrap();
    });
    node.stop();
    b.join().unwrap();
}
