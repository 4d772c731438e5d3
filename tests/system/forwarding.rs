//! `--forward tc`: the gateway in a namespace of its own, a BPF program at every veth pair, and its
//! counters.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;

use aya::programs::loaded_links;
use http::StatusCode;
use nearpath_kernel::namespace::run_in_netns;
use nearpath_testkit::{eventually, skip};
use rustix::process::Signal;
use serde_json::json;

use crate::quic::metric_value;
use crate::test_server::{TestServer, echo_function, http_function, need_forwarding};

/// Calls another function at the gateway's own address and forwards the response.
const RELAY_BODY: &str = r#"try:
    with urllib.request.urlopen("http://10.62.0.1:8080" + body.decode(), data=b"from inside") as reply:
        self.answer(reply.status, reply.read())
except urllib.error.HTTPError as error:
    self.answer(error.code, error.read())"#;

/// Probes an address; responds whether it is open.
const CONNECT_BODY: &str = r#"import socket
try:
    socket.create_connection((body.decode(), 8080), 1).close()
    self.answer(200, b"open")
except OSError as error:
    self.answer(200, b"closed: " + str(error).encode())"#;

const FORWARD_OPTIONS: &[&str] = &["--forward", "tc"];

async fn forwarded_bytes(server: &TestServer, function: &str, direction: &str) -> u64 {
    let labels = format!("function=\"{function}.openfaas-fn\",direction=\"{direction}\"");
    metric_value(server, "nearpath_forward_packets_total", &labels).await
}

/// Address of a function's only instance.
async fn instance_address(server: &TestServer, function: &str) -> String {
    let addr = server.describe(function).await["instances"][0]["addr"]
        .as_str()
        .unwrap()
        .to_owned();
    addr.split_once(':').unwrap().0.to_owned()
}

#[tokio::test]
async fn calls_go_through_the_forwarder_and_are_counted() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), FORWARD_OPTIONS).await;
    server
        .deploy_ready(&echo_function(folder.path(), "callee"))
        .await;
    let mut caller = http_function(folder.path(), "caller", RELAY_BODY);
    caller["annotations"] = json!({ "nearpath.io/chain": "shop", "nearpath.io/calls": "callee" });
    server.deploy_ready(&caller).await;
    let before = (
        forwarded_bytes(&server, "callee", "to").await,
        forwarded_bytes(&server, "caller", "from").await,
    );
    let answer = server.call_function("caller", "/function/callee").await;
    let reply = (answer.status(), answer.body().as_ref());
    assert_eq!(
        reply,
        (StatusCode::OK, b"from inside".as_ref()),
        "{}",
        server.log()
    );
    assert!(
        forwarded_bytes(&server, "callee", "to").await > before.0,
        "the gateway called it"
    );
    assert!(
        forwarded_bytes(&server, "caller", "from").await > before.1,
        "it called the gateway"
    );
    let both = [
        forwarded_bytes(&server, "callee", "from").await,
        metric_value(&server, "nearpath_forward_bytes_total", "callee").await,
    ];
    assert!(both[0] > 0 && both[1] > 1_000, "{both:?}");
    let kept = forwarded_bytes(&server, "callee", "to").await;
    server.scale("callee", 0).await;
    server.wait_available("callee", 0).await;
    assert!(
        forwarded_bytes(&server, "callee", "to").await >= kept,
        "what was counted stays"
    );
    assert_eq!(
        server
            .call_function("callee", "awake")
            .await
            .body()
            .as_ref(),
        b"awake",
        "an instance that comes later"
    );
}

#[tokio::test]
async fn an_instance_reaches_only_the_gateway() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), FORWARD_OPTIONS).await;
    server
        .deploy_ready(&echo_function(folder.path(), "other"))
        .await;
    server
        .deploy_ready(&http_function(folder.path(), "knock", CONNECT_BODY))
        .await;
    let other: &'static str = Box::leak(instance_address(&server, "other").await.into_boxed_str());
    let connect_to = async |at| {
        String::from_utf8(server.call_function("knock", at).await.body().to_vec()).unwrap()
    };
    assert_eq!(
        connect_to("10.62.0.1").await,
        "open",
        "the control: the gateway is there"
    );
    assert_eq!(
        metric_value(&server, "nearpath_packets_denied_total", "").await,
        0
    );
    assert!(connect_to(other).await.contains("refused"));
    assert!(metric_value(&server, "nearpath_packets_denied_total", "").await > 0);
    assert!(
        connect_to("169.254.0.1").await.contains("refused"),
        "not the switch itself either"
    );
}

#[tokio::test]
async fn a_forged_source_is_dropped_and_counted() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), FORWARD_OPTIONS).await;
    server
        .deploy_ready(&echo_function(folder.path(), "honest"))
        .await;
    server
        .deploy_ready(&echo_function(folder.path(), "liar"))
        .await;
    let honest: Ipv4Addr = instance_address(&server, "honest").await.parse().unwrap();
    let inside = File::open(format!(
        "/proc/{}/ns/net",
        server.instance_pids("liar").await[0]
    ))
    .unwrap();
    // An instance may not do this, so the test does it as root.
    let add = || {
        Command::new("ip")
            .args(["addr", "add", &format!("{honest}/32"), "dev", "lo"])
            .status()
    };
    match run_in_netns(&inside, add) {
        Ok(status) => assert!(status.success()),
        Err(why) => skip!("ip(8): {why}"),
    }
    assert_eq!(
        metric_value(&server, "nearpath_packets_forged_total", "").await,
        0
    );
    let forwarded = metric_value(&server, "nearpath_packets_forwarded_total", "").await;
    let liar = run_in_netns(&inside, || UdpSocket::bind((honest, 0))).unwrap();
    liar.send_to(b"I am honest", (Ipv4Addr::new(10, 62, 0, 1), 9))
        .unwrap();
    eventually("the forger is found out", async || {
        metric_value(&server, "nearpath_packets_forged_total", "").await > 0
    })
    .await;
    assert_eq!(
        metric_value(&server, "nearpath_packets_forwarded_total", "").await,
        forwarded,
        "it went nowhere"
    );
}

/// The forwarder refuses connections to a dead instance, so their requests go elsewhere.
#[tokio::test]
async fn killed_instances_cost_only_the_requests_inside_them() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    crate::process_death::only_the_requests_inside_are_lost(
        TestServer::start_in(folder.path(), FORWARD_OPTIONS).await,
    )
    .await;
}

/// BPF links of a process, with their types.
pub(crate) fn host_links(pid: u32) -> BTreeMap<u32, String> {
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .unwrap()
        .filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    let line = |info: &str, name: &str| {
        info.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    infos
        .filter_map(|info| {
            Some((
                line(&info, "link_id:")?.parse().ok()?,
                line(&info, "link_type:")?,
            ))
        })
        .collect()
}

/// BPF links of the machine.
pub(crate) fn all_links() -> BTreeSet<u32> {
    let links = loaded_links();
    links.filter_map(|link| Some(link.ok()?.id())).collect()
}

/// Namespace of a gateway thread, held so that it outlives the gateway.
fn gateway_namespace(server: &TestServer) -> File {
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid()))
        .unwrap()
        .map(|thread| thread.unwrap().path());
    let mut gateways = threads.filter(|thread| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("gateway-"))
    });
    File::open(gateways.next().unwrap().join("ns/net")).unwrap()
}

/// Returns true while the veth pair exists, which ends with the hub namespace.
fn has_veth_pair(namespace: &File) -> bool {
    run_in_netns(namespace, || {
        fs::read_to_string("/proc/thread-self/net/dev")
    })
    .unwrap()
    .contains("eth0:")
}

#[tokio::test]
async fn an_orderly_end_leaves_no_link_and_no_namespace() {
    need_forwarding!();
    for signal in [Signal::TERM, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = TestServer::start_in(folder.path(), FORWARD_OPTIONS).await;
        server
            .deploy_ready(&echo_function(folder.path(), "echo"))
            .await;
        assert_eq!(
            server.call_function("echo", "x").await.status(),
            StatusCode::OK
        );
        let (mine, namespace) = (host_links(server.pid()), gateway_namespace(&server));
        let devices = mine.values().filter(|kind| *kind == "tcx").count();
        assert_eq!(
            devices, 3,
            "for the gateway, for the way out, for the instance: {mine:?}"
        );
        // the control group of the pool's thread has some, too
        let mine: BTreeSet<_> = mine.into_keys().collect();
        assert!(mine.is_subset(&all_links()) && has_veth_pair(&namespace));
        server.end_with(signal);
        eventually("the links end", async || mine.is_disjoint(&all_links())).await;
        eventually("the switch ends, and with it the pair", async || {
            !has_veth_pair(&namespace)
        })
        .await;
    }
}
