//! Placement of a chain's functions: the kernel's view matches the node's decision.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nearpath_testkit::eventually;
use serde_json::{Value, json};

use crate::shm::{call_traced, chain_function, wait_in_memory};
use crate::test_server::TestServer;

fn placed_function(
    server: &TestServer,
    name: &str,
    next: Option<&str>,
    calls: &str,
    placement: &str,
) -> Value {
    let mut spec = chain_function(server, name, next, calls);
    spec["annotations"]["nearpath.io/placement"] = json!(placement);
    spec
}

async fn deploy_chain(server: &TestServer, placement: &str) {
    server
        .deploy_ready(&placed_function(server, "second", None, "", placement))
        .await;
    server
        .deploy_ready(&placed_function(
            server,
            "first",
            Some("second"),
            "second",
            placement,
        ))
        .await;
    wait_in_memory(server, "first").await;
    eventually("first knows second", async || {
        call_traced(server, "first").await.status() == 200
    })
    .await;
}

/// Allowed processors of the threads of a process, each list once; see proc_pid_status(5).
fn allowed_processors(pid: i32) -> BTreeSet<String> {
    threads_of(pid)
        .into_iter()
        .map(|thread| thread.processors)
        .collect()
}

struct ProcessThread {
    name: String,
    processors: String,
}

fn threads_of(pid: i32) -> Vec<ProcessThread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let read = |path: std::path::PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let field = |name: &str| {
            let mut values = status.lines().filter_map(|line| line.strip_prefix(name));
            Some(values.next()?.trim().to_owned())
        };
        Some(ProcessThread {
            name: field("Name:")?,
            processors: field("Cpus_allowed_list:")?,
        })
    };
    tasks.filter_map(|task| read(task.path())).collect()
}

/// Allowed processors of the gateway's serving threads, in order.
fn gateway_processors(server: &TestServer) -> Vec<String> {
    let threads = threads_of(server.pid() as i32).into_iter();
    let is_serving = |name: &str| {
        name.strip_prefix("gateway-")
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut processors: Vec<_> = threads
        .filter(|thread| is_serving(&thread.name))
        .map(|thread| thread.processors)
        .collect();
    processors.sort();
    processors
}

/// Processors of the chain's threads.
async fn used_processors(server: &TestServer) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for name in ["first", "second"] {
        let processes = server.instance_processes(name).await;
        assert!(processes.len() >= 2, "a watchdog and a handler");
        all.extend(processes.into_iter().flat_map(allowed_processors));
    }
    all
}

/// The node's last decision on the chain: the processor, or none for all of them.
fn decided_processor(server: &TestServer) -> Option<usize> {
    let log = server.log();
    let word = log.lines().rfind(|line| {
        line.contains("the group's processor") && line.contains("shop.openfaas-fn")
    })?;
    let (_, to) = word
        .rsplit_once(" to=")
        .or_else(|| word.rsplit_once("\"to\":"))?;
    to.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns true if all threads run as the node decided.
async fn runs_as_decided(server: &TestServer) -> bool {
    let (decided, found, everywhere) = (
        decided_processor(server),
        used_processors(server).await,
        allowed_processors(std::process::id() as i32),
    );
    match decided {
        Some(core) => found == BTreeSet::from([core.to_string()]),
        None => found == everywhere,
    }
}

fn has_one_processor() -> bool {
    std::thread::available_parallelism().is_ok_and(|n| n.get() == 1)
}

#[tokio::test]
async fn core_puts_every_thread_of_the_chain_on_the_processor_that_the_node_names() {
    nearpath_testkit::need_root!();
    if has_one_processor() {
        nearpath_testkit::skip!("one processor: nothing is moved");
    }
    let server = TestServer::start().await;
    deploy_chain(&server, "core").await;
    eventually("the node names a processor", async || {
        decided_processor(&server).is_some()
    })
    .await;
    eventually("all threads are there", async || {
        runs_as_decided(&server).await
    })
    .await;
    assert_eq!(call_traced(&server, "first").await.status(), 200);
    server.scale("second", 2).await;
    server.wait_available("second", 2).await;
    eventually("so are those of an instance that comes later", async || {
        runs_as_decided(&server).await
    })
    .await;
}

/// The thread that serves the calls of a chain's instances runs on the chain's processor, until no such
/// instance is left.
#[tokio::test]
async fn one_thread_of_the_gateway_follows_its_chain() {
    nearpath_testkit::need_root!();
    if has_one_processor() {
        nearpath_testkit::skip!("one processor: nothing is moved");
    }
    let server = TestServer::start().await;
    deploy_chain(&server, "core").await;
    let mut followers = 0;
    eventually("a thread follows the calls", async || {
        assert_eq!(call_traced(&server, "first").await.status(), 200);
        let core = decided_processor(&server).map(|core| core.to_string());
        let now = gateway_processors(&server);
        followers = now.iter().filter(|one| core.as_ref() == Some(one)).count();
        followers > 0
    })
    .await;
    assert_eq!(followers, 1, "the others serve callers outside");
    server.scale("first", 0).await;
    eventually("it runs everywhere again", async || {
        let now = BTreeSet::from_iter(gateway_processors(&server));
        now == allowed_processors(std::process::id() as i32)
    })
    .await;
}

#[tokio::test]
async fn spread_leaves_every_thread_alone() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, "spread").await;
    assert_eq!(
        (decided_processor(&server), runs_as_decided(&server).await),
        (None, true)
    );
}

/// An almost idle chain gets a processor where one is free, and none where all are busy.
#[tokio::test]
async fn auto_puts_threads_where_the_node_decided() {
    nearpath_testkit::need_root!();
    if has_one_processor() {
        nearpath_testkit::skip!("one processor: nothing is moved");
    }
    let server = TestServer::start().await;
    deploy_chain(&server, "auto").await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while decided_processor(&server).is_none() && tokio::time::Instant::now() < deadline {
        // the node checks every 2 s, and needs three checks
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually("all threads are where the node says", async || {
        runs_as_decided(&server).await
    })
    .await;
    assert_eq!(call_traced(&server, "first").await.status(), 200);
    if decided_processor(&server).is_none() {
        nearpath_testkit::skip!(
            "no processor of this machine had room for ten looks: the chain was left alone"
        );
    }
}
