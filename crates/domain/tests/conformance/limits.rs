//! What a mode costs when nothing happens, and what it does when too much does.

use std::time::Instant;

use nearpath_domain::hub::Settings;
use nearpath_domain::{Answer, Request, To, Unsent};
use nearpath_shm::{Draft, Envelope, Kind};
use nearpath_types::InstanceId;

use super::node::{DEADLINE, Mode, Node, Process, function, knows, knows_async};
use super::stranger::pair;

pub(crate) fn backpressure_never_loses(mode: Mode) {
    const EVENTS: u32 = 3000;
    let node = Node::with(mode, Settings { capacity: 16, ..Settings::named("small") });
    node.edges(&[("a", "b")]);
    let ((seen, sees), (go, goes)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let mut full = 0;
    let b = node.serve(2, "b", move |_, incoming| {
        let _ = goes.recv(); // the first one waits until the ring is full, all others for nobody
        seen.send(u32::from_le_bytes(incoming.body[..].try_into().unwrap())).unwrap();
        Answer::default()
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let (to, mut go) = (function("b"), Some(go));
    for n in 0..EVENTS {
        let request = Request { body: n.to_le_bytes().to_vec().into(), ..Request::default() };
        loop {
            match a.notify(To::Function(&to), &request) {
                Ok(()) => break,
                Err(Unsent::NoCredit) => {
                    full += 1;
                    drop(go.take());
                }
                Err(why) => panic!("{why}"),
            }
        }
    }
    for n in 0..EVENTS {
        assert_eq!(sees.recv_timeout(DEADLINE).unwrap(), n, "each once, in order");
    }
    assert!(full > 0, "the ring was full while nobody took anything");
    drop(a);
    node.until("all slots are back", |usage| usage.slots == 0);
    node.stop();
    b.join().unwrap();
}

/// A process that has answered some calls and now waits for more.
fn idle_process(node: &Node) -> Process {
    node.edges(&[("a", "echo")]);
    let process = node.process(2, "echo", "echo");
    let mut a = node.caller(1, "a");
    knows(&mut a, "echo");
    for _ in 0..100 {
        assert_eq!(a.call(To::Function(&function("echo")), &Request::default()).unwrap().status, 200);
    }
    drop(a);
    node.until("only it is left", |usage| usage.parties == 1 && usage.channels == 0);
    process
}

/// Over all threads: how often they were put on a processor (`/proc/PID/task/TID/schedstat`, third number).
fn runs(process: &Process) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.child.id())).unwrap();
    let of = |path: std::path::PathBuf| std::fs::read_to_string(path.join("schedstat")).unwrap();
    threads.map(|thread| of(thread.unwrap().path()).split_whitespace().nth(2).unwrap().parse::<u64>().unwrap()).sum()
}

pub(crate) fn idle_costs_nothing(mode: Mode) {
    let node = Node::new(mode);
    let process = idle_process(&node);
    // A party looks around once in 10 s by itself; whoever polls or is woken for nothing runs hundreds of times meanwhile.
    let counted = || {
        let before = runs(&process);
        std::thread::sleep(std::time::Duration::from_millis(300)); // what is measured, not a wait for something
        runs(&process) - before
    };
    let least = (0..5).map(|_| counted()).min().unwrap();
    assert!(least <= 2, "an idle party ran {least} times in 300 ms");
    node.stop();
}

/// The control of [`idle_costs_nothing`]: the measure sees a party that does not sleep.
pub(crate) fn idle_costs_all(mode: Mode) {
    let node = Node::new(mode);
    let process = idle_process(&node);
    let (before, start) = (runs(&process), Instant::now());
    let cpu = || std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let ticks =
        || cpu().rsplit(") ").next().unwrap().split(' ').skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum();
    let spent: u64 = ticks();
    while runs(&process) < before + 100 && ticks() < spent + 20 {
        assert!(start.elapsed() < DEADLINE, "it sleeps");
        std::thread::yield_now();
    }
    node.stop();
}

pub(crate) fn a_death_between_push_and_send_gives_slots_back(mode: Mode) {
    let node = Node::new(mode);
    let (mut a, stranger, mut end) = pair(&node, mode);
    let pending = a.begin(To::Function(&function("b")), &Request::default()).unwrap();
    let call = stranger.receive(&mut end);
    // An answer in parts, of which no end comes: the last thing that it does is a push of which nobody is told.
    for _ in 0..3 {
        let draft = Draft::new(stranger.member.claim(256).unwrap());
        end.send(draft.finish(Envelope::new(Kind::Part, call.envelope().call))).unwrap();
    }
    std::mem::forget((call, stranger.member.claim(4096).unwrap())); // the dead release nothing
    drop((stranger, end));
    assert!(a.wait(pending).is_err());
    node.until("all slots are back", |usage| usage.slots == 0 && usage.channels == 0);
    node.hub.gone(InstanceId(2));
    node.stop();
}

/// Events have no answers that would bring credit back: who waits for it is rung when some have been taken.
pub(crate) fn credit_for_events_comes_back(mode: Mode) {
    let node = Node::with(mode, Settings { capacity: 16, ..Settings::named("small") });
    node.edges(&[("a", "b")]);
    let (taken, takes) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let b = node.serve(2, "b", move |_, _| {
        let _ = taken.send(());
        let _ = goes.recv();
        Answer::default()
    });
    node.gateway(|post| async move {
        knows_async(&post, "b").await;
        let id = function("b");
        let notify = || post.notify(To::Function(&id), &Request::default());
        notify().unwrap();
        tokio::task::yield_now().await; // the driver rings
        takes.recv_timeout(DEADLINE).unwrap();
        while notify().is_ok() {} // its party is in the handler, and takes nothing
        assert_eq!(notify().unwrap_err(), Unsent::NoCredit);
        let waits = tokio::task::spawn_local({
            let (post, id) = (post.clone(), id.clone());
            async move { post.credit(&id).await }
        });
        for _ in 0..10 {
            tokio::task::yield_now().await; // the driver sleeps after that
        }
        assert!(!waits.is_finished());
        drop(go);
        tokio::time::timeout(DEADLINE, waits).await.expect("nobody rang").unwrap();
        notify().unwrap();
    });
    node.stop();
    b.join().unwrap();
}
