//! The access matrix: instances reach their declared callees in every way, and other instances in none, while
//! edges change all the time, and while the source of the application is away.
//!
//! `make nightly` runs it at length: 300 requests for each pair and way, and 1,000 changes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, StatusCode};
use nearpath_testkit::{eventually, need_root};
use serde_json::{Value, json};

use crate::test_server::{TestServer, echo_function, http_function};

/// Functions with their declared callees.
const GRAPH: [(&str, &[&str]); 4] = [
    ("page", &["reviews", "details"]),
    ("reviews", &["ratings"]),
    ("details", &[]),
    ("ratings", &[]),
];
const CHAIN: &str = "books";

/// Answers over TCP and UDP at port 7000 with what it gets.
const ECHO_SERVERS: &str = r#"import socket, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("", 7000))
def datagrams():
    while True:
        data, peer = udp.recvfrom(2000); udp.sendto(data, peer)
tcp = socket.create_server(("", 7000), backlog=1000)
def streams():
    while True:
        one, _ = tcp.accept(); one.sendall(one.recv(10)); one.close()
for each in datagrams, streams: threading.Thread(target=each, daemon=True).start()
"#;

/// Tries every way to every target as often as asked. Responds with the outcomes and their numbers.
const CLIENT_BODY: &str = r#"import errno, json, socket, struct
asked = json.loads(body)
six = socket.AF_INET6
def limited(*kind):
    s = socket.socket(*kind)
    # Those of Python make the socket non-blocking: Fast Open's sendto() would not wait.
    for option in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO: s.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 30, 0))
    return s
def tcp(address, family=socket.AF_INET, protocol=0):
    with limited(family, socket.SOCK_STREAM, protocol) as s:
        s.connect((address, 7000)); s.sendall(b"x"); return s.recv(1)
def fast_open(address):
    with limited() as s:
        s.sendto(b"x", 0x20000000, (address, 7000)); return s.recv(1)
def datagram(address, family=socket.AF_INET):
    with limited(family, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", (address, 7000)); return s.recv(1)
def connected(address, family=socket.AF_INET):
    with limited(family, socket.SOCK_DGRAM) as s:
        s.connect((address, 7000)); s.send(b"x"); return s.recv(1)
def http(address):
    with urllib.request.urlopen("http://" + address, timeout=30) as reply:
        return reply.status == 200
ways = {
    "tcp": tcp, "fast-open": fast_open, "mptcp": lambda a: tcp(a, protocol=262), "udp": datagram, "udp-connected": connected,
    "tcp-mapped": lambda a: tcp("::ffff:" + a, six), "udp-mapped": lambda a: datagram("::ffff:" + a, six),
}
outcomes = {}
def attempt(name, way, address):
    try: outcome = "passed" if way(address) else "closed"
    except OSError as error:
        error = getattr(error, "reason", error)
        outcome = errno.errorcode.get(getattr(error, "errno", None), str(error))
    counts = outcomes.setdefault(name, {})
    counts[outcome] = counts.get(outcome, 0) + 1
for _ in range(asked["times"]):
    for target, addresses in asked["targets"].items():
        for name, way in ways.items():
            attempt(target + " virtual " + name, way, addresses["virtual"])
            if name != "mptcp": attempt(target + " instance " + name, way, addresses["instance"])
        attempt(target + " virtual tcp6", lambda a: tcp(a, six), addresses["ipv6"])
        attempt(target + " virtual udp6-connected", lambda a: connected(a, six), addresses["ipv6"])
        attempt(target + " virtual http", http, addresses["virtual"])
        if target in asked["named"]:
            for name, way in ("tcp", tcp), ("udp", datagram), ("http", http):
                attempt(target + " name " + name, way, target)
self.answer(200, json.dumps(outcomes).encode())"#;

/// Responds to a GET with the IPv6 address of the name in its path, if there is one. Else it is the client.
fn body() -> String {
    let client = CLIENT_BODY.replace('\n', "\n    ");
    format!(
        "if self.command == \"GET\":
    import socket
    name = self.path[1:]
    found = socket.getaddrinfo(name, None, socket.AF_INET6)[0][4][0] if name else ''
    self.answer(200, found.encode())
else:
    {client}"
    )
}

/// Returns a function of the graph.
fn member(folder: &Path, name: &str, calls: &[&str]) -> Value {
    let mut function = http_function(folder, name, &body());
    let file = folder.join(format!("fn-{name}/server.py"));
    let source = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{ECHO_SERVERS}{source}")).unwrap();
    function["annotations"] =
        json!({ "nearpath.io/chain": CHAIN, "nearpath.io/calls": declared(name, calls) });
    function
}

/// Returns the declaration of a function's edges. HTTP goes straight to the callee on one of them.
fn declared(name: &str, calls: &[&str]) -> String {
    match name {
        "reviews" => format!("{} balance=connection", calls.join(",")),
        _ => calls.join(","),
    }
}

/// Returns a number from the environment, for `make nightly`.
fn setting(name: &str, default: usize) -> usize {
    let value = std::env::var(name).map(|text| text.parse());
    value.map_or(default, |number| number.expect(name))
}

/// Returns the addresses of a function: virtual ones, and that of its instance. `sample` is a virtual address
/// of IPv6: all have its first 96 bits, and end with those of IPv4.
async fn addresses_of(server: &TestServer, name: &str, sample: Ipv6Addr) -> Value {
    let described = server.describe(name).await;
    let address: Ipv4Addr = described["virtualAddress"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    // Undeclared callees have no name inside, so their address is built from a declared one.
    let mut ipv6 = sample.octets();
    ipv6[12..].copy_from_slice(&address.octets());
    let instance = described["instances"][0]["addr"].as_str().unwrap();
    let (instance, _) = instance.rsplit_once(':').unwrap();
    json!({ "virtual": address, "ipv6": Ipv6Addr::from(ipv6), "instance": instance })
}

async fn targets(server: &TestServer) -> BTreeMap<&'static str, Value> {
    let sample = server
        .send_request(Method::GET, "/function/page/reviews", "")
        .await;
    let sample = String::from_utf8_lossy(sample.body()).into_owned();
    // Else the text is an error of the function.
    let sample = sample.parse().unwrap_or_else(|_| panic!("{sample}"));
    let mut targets = BTreeMap::new();
    for (name, _) in GRAPH {
        targets.insert(name, addresses_of(server, name, sample).await);
    }
    targets
}

/// Lets each function try all others, and checks each outcome.
async fn check_matrix(server: &TestServer, times: usize) {
    let targets = targets(server).await;
    for (caller, callees) in GRAPH {
        let others: BTreeMap<_, _> = targets
            .iter()
            .filter(|(name, _)| **name != caller)
            .collect();
        let asked = json!({ "times": times, "targets": others, "named": callees });
        let path = format!("/function/{caller}");
        let request = server.send_request(Method::POST, &path, asked.to_string());
        let answer = request.await;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        assert_eq!(answer.status(), StatusCode::OK, "{text}\n{}", server.log());
        let outcomes: BTreeMap<String, BTreeMap<String, usize>> =
            serde_json::from_str(&text).unwrap();
        // A way that was left out would pass silently.
        let ways = outcomes.len();
        assert_eq!(ways, others.len() * 16 + callees.len() * 3, "{outcomes:?}");
        for (attempt, counts) in outcomes {
            // All attempts of a pair have one outcome: a single other one is a fault.
            let expected = expected(&attempt, callees);
            let all = BTreeMap::from([(expected.to_owned(), times)]);
            assert_eq!(counts, all, "{caller} -> {attempt}\n{}", server.log());
        }
    }
}

fn expected(attempt: &str, callees: &[&str]) -> &'static str {
    let (target, way) = attempt.split_once(' ').unwrap();
    match callees.contains(&target) {
        _ if way.ends_with("mptcp") => "EPROTONOSUPPORT",
        true => "passed",
        false => "EPERM",
    }
}

/// Gives a function other edges again and again, until told to stop. Returns how often.
async fn change_edges(server: &TestServer, least: usize, is_done: &AtomicBool) -> usize {
    let mut changes = 0;
    // At least so many, and as long as requests are sent.
    while changes < least || !is_done.load(Ordering::Relaxed) {
        // Rows of the functions under test change, too: they are callees of this one.
        for calls in ["ratings", "ratings,details", "details,reviews", ""] {
            let mut function = echo_function(&server.data_dir, "changing");
            function["annotations"] =
                json!({ "nearpath.io/chain": CHAIN, "nearpath.io/calls": calls });
            server.deploy(&function).await;
            changes += 1;
        }
    }
    changes
}

#[tokio::test]
async fn only_declared_pairs_pass_while_edges_change() {
    need_root!();
    let (times, changes) = (
        setting("NEARPATH_MATRIX_REQUESTS", 10),
        setting("NEARPATH_MATRIX_CHANGES", 40),
    );
    let server = TestServer::start().await;
    for (name, calls) in GRAPH {
        let function = member(&server.data_dir, name, calls);
        server.deploy(&function).await;
    }
    for (name, _) in GRAPH {
        server.wait_available(name, 1).await;
    }
    // The changes last as long as the matrix, however fast either is.
    let is_done = AtomicBool::new(false);
    let matrix = async {
        check_matrix(&server, times).await;
        is_done.store(true, Ordering::Relaxed);
    };
    let (changed, ()) = tokio::join!(change_edges(&server, changes, &is_done), matrix);
    assert!(changed >= changes, "{changed}");
    check_denials(&server).await;
}

/// Each denied pair is counted with both names.
async fn check_denials(server: &TestServer) {
    let metrics = server.read_metrics().await;
    for (caller, callees) in GRAPH {
        for (callee, _) in GRAPH {
            let row = format!(
                r#"nearpath_edge_connections_denied_total{{caller="{caller}.openfaas-fn",callee="{callee}.openfaas-fn""#
            );
            // Declared pairs must not be counted as denied, either.
            let is_denied = callee != caller && !callees.contains(&callee);
            assert_eq!(metrics.contains(&row), is_denied, "{row}\n{metrics}");
        }
    }
}

/// The edges hold without their source.
#[tokio::test]
async fn only_declared_pairs_pass_while_the_source_is_away() {
    need_root!();
    let times = setting("NEARPATH_MATRIX_REQUESTS", 10);
    let folder = tempfile::tempdir().unwrap();
    let (source, data) = (folder.path().join("source"), folder.path().join("data"));
    std::fs::create_dir(&source).unwrap();
    let stack = stack_file(folder.path());
    std::fs::write(source.join("stack.yml"), stack).unwrap();
    let nodes = "nodes:\n  a: {address: 127.0.0.1}\n";
    std::fs::write(source.join("nodes.yml"), nodes).unwrap();
    let server = TestServer::start_node(&data, &source).await;
    eventually("the source is read", async || {
        let answer = server.send_request(Method::GET, "/system/function/page", "");
        answer.await.status() == StatusCode::OK
    })
    .await;
    for (name, _) in GRAPH {
        server.wait_available(name, 1).await;
    }
    // A rename removes all files at once, as a lost mount does.
    std::fs::rename(&source, folder.path().join("away")).unwrap();
    eventually("the node misses its source", async || {
        server.log().contains("the last good state stays")
    })
    .await;
    check_matrix(&server, times).await;
}

/// Writes the functions, and returns the stack file that declares them.
fn stack_file(folder: &Path) -> String {
    let mut stack = "version: 1.0\nprovider: { name: openfaas }\nfunctions:\n".to_owned();
    let mut edges = format!("chains:\n  {CHAIN}:\n    edges:\n");
    for (name, calls) in GRAPH {
        let function = member(folder, name, calls);
        stack.push_str(&format!(
            "  {name}:\n    image: {}\n    fprocess: {}\n    environment: {}\n",
            function["image"], function["envProcess"], function["envVars"]
        ));
        if !calls.is_empty() {
            edges.push_str(&format!("      {name}: [{}]\n", declared(name, calls)));
        }
    }
    stack + &edges
}
