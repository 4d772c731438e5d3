//! The whole node with the real kernel and the real watchdog.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::fixture::{Lab, hub_devices, instance_cgroups, post_echo, ready_instances};
use nearpath_kernel::sandbox::IsolationLevel;
use nearpath_node::SettleHook;
use nearpath_testkit::{eventually, need_root, within};
use nearpath_types::{LogQuery, RoutingSnapshot};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

const CAT: &[(&str, &str)] = &[("mode", "serializing"), ("fprocess", "cat")];

fn settle_hook() -> SettleHook {
    SettleHook::after_delay(Duration::from_millis(20))
}

#[tokio::test]
async fn ten_instances_start_one_is_replaced_and_nothing_is_left() {
    need_root!();
    let lab = Lab::new(IsolationLevel::Root, settle_hook()).await;
    lab.node.apply_desired(lab.desired_echo(1, 10, CAT));
    let snapshot = lab.until(|echo| ready_instances(echo).len() == 10).await;
    for (id, addr) in ready_instances(snapshot.functions.first().unwrap()) {
        let answer = Lab::call(lab.hub.as_deref(), addr, &id.to_string()).unwrap();
        assert!(answer.ends_with(&id.to_string()), "{answer}");
    }
    for one in lab.instances() {
        let names: Vec<_> = one.start.iter().map(|phase| phase.name.as_str()).collect();
        for expected in ["spawn", "network", "root", "lockdown", "watchdog"] {
            assert!(names.contains(&expected), "{names:?}");
        }
    }
    let victim = lab.instances()[3].clone();
    kill_process(Pid::from_raw(victim.pid as i32).unwrap(), Signal::KILL).unwrap();
    lab.until(|echo| {
        ready_instances(echo).len() == 10 && echo.instances.iter().all(|one| one.id != victim.id)
    })
    .await;
    assert!(
        lab.node
            .read_usage(&"echo".parse().unwrap())
            .await
            .total_memory_bytes
            > 0.0
    );
    let pids: Vec<_> = lab
        .instances()
        .iter()
        .map(|one| one.pid)
        .chain([victim.pid])
        .collect();
    let hub = lab.hub.clone().unwrap();
    // the kernel removes a dead namespace's devices asynchronously
    eventually("the loopback and ten instances", async || {
        hub_devices(&hub).len() == 11
    })
    .await;
    assert!(!instance_cgroups(&lab.name.0).is_empty());
    within(lab.node.drain_and_stop()).await;
    assert_eq!(
        instance_cgroups(&lab.name.0),
        [""; 0].map(std::path::PathBuf::from)
    );
    assert!(
        pids.iter()
            .all(|pid| !std::fs::exists(format!("/proc/{pid}")).unwrap())
    );
    eventually("only the loopback is left", async || {
        hub_devices(&hub) == ["lo"]
    })
    .await;
}

/// Calls the instances of the latest snapshot in turn, and reports the snapshot that it uses.
fn poll_echo(
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    using: watch::Sender<u64>,
    done: Arc<AtomicBool>,
    hub: Arc<nearpath_kernel::hub_netns::HubNetns>,
) -> io::Result<u64> {
    hub.enter()?;
    let mut calls = 0;
    while !done.load(Ordering::Relaxed) {
        let snapshot = snapshots.borrow().clone();
        using.send_replace(snapshot.version);
        let all = ready_instances(snapshot.functions.first().unwrap());
        let (_, addr) = all[calls as usize % all.len()];
        post_echo(addr, "poll")?;
        calls += 1;
    }
    using.send_replace(u64::MAX);
    Ok(calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_update_and_scaling_lose_no_call() {
    need_root!();
    let using = watch::Sender::new(0);
    let using_sender = using.clone();
    let settle_hook = SettleHook::from_hook(move |version, _| {
        let mut using = using_sender.subscribe();
        Box::pin(async move { drop(using.wait_for(|used| *used >= version).await) })
    });
    let lab = Lab::new(IsolationLevel::Root, settle_hook).await;
    lab.node.apply_desired(lab.desired_echo(1, 2, CAT));
    lab.until(|echo| ready_instances(echo).len() == 2).await;
    let done = Arc::new(AtomicBool::new(false));
    let (snapshots, hub, done_flag) = (
        lab.node.watch_snapshots(),
        lab.hub.clone().unwrap(),
        done.clone(),
    );
    let poller = tokio::task::spawn_blocking(move || poll_echo(snapshots, using, done_flag, hub));
    for (revision, replicas) in [(2, 3), (3, 1), (3, 4), (4, 2)] {
        let old: Vec<_> = lab
            .instances()
            .iter()
            .map(|one| (one.id, one.revision))
            .collect();
        lab.node
            .apply_desired(lab.desired_echo(revision, replicas, CAT));
        lab.until(|echo| {
            let kept = |id| old.iter().all(|(old, of)| *old != id || of.0 == revision);
            let count = replicas as usize;
            echo.instances.len() == count
                && ready_instances(echo).len() == count
                && ready_instances(echo).iter().all(|(id, _)| kept(*id))
        })
        .await;
    }
    done.store(true, Ordering::Relaxed);
    let calls = within(poller).await.unwrap().expect("every call succeeds");
    assert!(calls > 10, "only {calls} calls were made");
    within(lab.node.drain_and_stop()).await;
}

#[tokio::test]
async fn a_handler_that_crashes_at_its_start_is_explained() {
    need_root!();
    let lab = Lab::new(IsolationLevel::Root, settle_hook()).await;
    lab.file(
        "handler.py",
        "import sys\nprint('no module named cart', file=sys.stderr)\nsys.exit(3)\n",
    );
    let variables = [
        ("mode", "http"),
        ("fprocess", "python3 handler.py"),
        ("upstream_url", "http://127.0.0.1:5000"),
    ];
    lab.node.apply_desired(lab.desired_echo(1, 1, &variables));
    lab.until(|echo| echo.start_failure.is_some()).await;
    let observed = lab.node.watch_observed().borrow().clone();
    let start_failure = observed.first().unwrap().start_failure.clone().unwrap();
    assert!(
        start_failure.contains('3') && start_failure.contains("no module named cart"),
        "{start_failure}"
    );
    let query = LogQuery {
        function: "echo".parse().unwrap(),
        instance: None,
        tail: None,
        since: None,
        follow: true,
    };
    let mut logs = lab.node.read_logs(query);
    let mut seen = false;
    while !seen {
        seen = within(logs.recv())
            .await
            .unwrap()
            .text
            .contains("no module named cart");
    }
    lab.file("handler.py", SERVER);
    lab.node.apply_desired(lab.desired_echo(2, 1, &variables));
    let healed = lab.until(|echo| ready_instances(echo).len() == 1).await;
    let answer = Lab::call(
        lab.hub.as_deref(),
        ready_instances(healed.functions.first().unwrap())[0].1,
        "again",
    )
    .unwrap();
    assert!(answer.ends_with("again"), "{answer}");
    within(lab.node.drain_and_stop()).await;
}

/// Echoes on the port of `PORT` or, without it, of the watchdog's upstream.
const SERVER: &str = r"
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
class Echo(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
HTTPServer(('127.0.0.1', int(os.environ.get('PORT', '5000'))), Echo).serve_forever()
";

#[tokio::test]
async fn without_a_sandbox_instances_share_the_machine() {
    let lab = Lab::new(IsolationLevel::None, settle_hook()).await;
    lab.file("handler.py", SERVER);
    let variables = [("mode", "http"), ("fprocess", "python3 handler.py")];
    lab.node.apply_desired(lab.desired_echo(1, 2, &variables));
    let snapshot = lab.until(|echo| ready_instances(echo).len() == 2).await;
    for (id, addr) in ready_instances(snapshot.functions.first().unwrap()) {
        assert!(addr.ip().is_loopback());
        assert!(
            Lab::call(None, addr, &id.to_string())
                .unwrap()
                .ends_with(&id.to_string())
        );
    }
    let pids: Vec<_> = lab.instances().iter().map(|one| one.pid).collect();
    within(lab.node.drain_and_stop()).await;
    assert!(
        pids.iter()
            .all(|pid| !std::fs::exists(format!("/proc/{pid}")).unwrap())
    );
    assert_eq!(
        std::fs::read_dir(lab.folder.path().join("data"))
            .unwrap()
            .count(),
        3,
        "ids, artifacts, tmp"
    );
    let tmp = std::fs::read_dir(lab.folder.path().join("data/tmp"))
        .unwrap()
        .count();
    assert_eq!(tmp, 0, "no temporary folder is left");
}
