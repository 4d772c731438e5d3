//! Hot edges between nodes: the caller's watchdog calls the callee's over a socket of the machine.

use std::process::Command;

use nearpath_testkit::{eventually, need_root, program};
use rustix::process::Signal;
use serde_json::Value;

use super::functions::function_entry;
use super::machines::Machines;

/// Calls the function that its path names; responds with the path of that call, and its response.
const RELAY_HANDLER: &str = r#"import http.server, urllib.error, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        request = urllib.request.Request("http://gateway:8080/function" + self.path, headers={"X-Nearpath-Path": "tell"})
        try:
            reply = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            shown = reply.headers.get("X-Nearpath-Path") or reply.headers.get("X-Nearpath-Reason") or "none"
            body = (shown + " | ").encode() + reply.read()
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
Server(("127.0.0.1", 5000), Handler).serve_forever()
"#;

/// Responds with the caller's name.
const MIRROR_HANDLER: &str = r#"import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = self.headers.get("X-Nearpath-Caller", "nobody").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
"#;

const DIRECT_PORTS: &str = "8500-8509";
/// Drops the packets of direct calls on their way.
const BLOCK_DIRECT: &str = "add table ip direct; \
     add chain ip direct out { type filter hook forward priority 0; }; \
     add rule ip direct out udp dport 8500-8509 drop";
/// Calls in a minute after which an edge is hot.
const HOT_CALLS: usize = 16;

/// Writes `front` on node a, which calls `back` on node b, if the edge is declared.
fn write_pair(machines: &Machines, calls: &str) {
    machines.write("relay/server.py", RELAY_HANDLER);
    machines.write("mirror/server.py", MIRROR_HANDLER);
    let more = |node: &str, calls: &str| {
        format!(
            "nodes: [{node}], annotations: {{nearpath.io/transport: quic, nearpath.io/calls: \"{calls}\"}},"
        )
    };
    let front = function_entry("front", "./relay", &more("a", calls));
    let back = function_entry("back", "./mirror", &more("b", ""));
    machines.write("stack.yml", &format!("functions:\n{front}{back}"));
}

async fn start_pair(options: &[&'static str]) -> Machines {
    let mut machines = Machines::new(&["a", "b"]);
    machines.options = options.to_vec();
    write_pair(&machines, "back");
    machines.start_all().await;
    machines.wait_answered(0, "/function/front/back").await;
    machines
}

/// Lets `front` call `back`. Returns the status, and the path of that call.
async fn call(machines: &Machines) -> (u16, String) {
    let response = machines.get(0, "/function/front/back").await;
    let text = String::from_utf8(response.body().to_vec()).unwrap();
    let (path, _) = text.split_once(" | ").unwrap_or((&text, ""));
    (response.status().as_u16(), path.to_owned())
}

/// The call came from the gateway of the other node.
fn is_by_nodes(path: &str) -> bool {
    path.contains("node=b") && path.contains("then=")
}

fn is_direct(path: &str) -> bool {
    path.starts_with("quic; node=b; instance=i")
}

async fn wait_direct(machines: &Machines) {
    let what = format!("calls go directly\n{}", machines.logs());
    eventually(&what, async || is_direct(&call(machines).await.1)).await;
}

/// Rows of `nearpath paths` of node a, from `front` to `back`.
fn path_rows(machines: &Machines) -> Vec<Value> {
    let password = machines.folder().join("data-a/basic-auth-password");
    let mut command = Command::new(program("nearpath"));
    command.args(["paths", "--json", "--gateway"]);
    command.arg(format!("http://{}", machines.machines[0].gateway()));
    command.args(["--password-file"]).arg(password);
    let output = command.output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let is_edge =
        |row: &Value| row["caller"] == "front.openfaas-fn" && row["callee"] == "back.openfaas-fn";
    rows.into_iter().filter(is_edge).collect()
}

#[tokio::test]
async fn an_edge_goes_directly_when_it_is_hot() {
    need_root!();
    let machines = start_pair(&["--direct-ports", DIRECT_PORTS]).await;
    // The first call was that of the start.
    for number in 2..=HOT_CALLS {
        let (status, path) = call(&machines).await;
        assert_eq!(status, 200, "{path}\n{}", machines.logs());
        assert!(is_by_nodes(&path), "call {number}: {path}");
    }
    wait_direct(&machines).await;
    let response = machines.get(0, "/function/front/back").await;
    let text = String::from_utf8(response.body().to_vec()).unwrap();
    assert!(
        text.ends_with("| front.openfaas-fn"),
        "the caller's name: {text}"
    );
    let what = "`nearpath paths` shows it";
    eventually(what, async || {
        let rows = path_rows(&machines);
        // Not by the nodes: that row has a path inside the other node.
        rows.len() == 1
            && rows[0]["path"] == "quic"
            && rows[0]["calleeInstance"] == "b/i1"
            && rows[0]["innerPath"].is_null()
    })
    .await;
}

/// Control: without ports, the same calls go by the nodes.
#[tokio::test]
async fn control_calls_go_by_the_nodes_without_ports() {
    need_root!();
    let machines = start_pair(&[]).await;
    for _ in 0..4 * HOT_CALLS {
        let (status, path) = call(&machines).await;
        assert!(status == 200 && is_by_nodes(&path), "{status} {path}");
    }
}

#[tokio::test]
async fn calls_go_by_the_nodes_where_direct_ports_are_blocked() {
    need_root!();
    let machines = start_pair(&["--direct-ports", DIRECT_PORTS]).await;
    machines.filter(BLOCK_DIRECT);
    for _ in 0..4 * HOT_CALLS {
        let (status, path) = call(&machines).await;
        assert!(status == 200 && is_by_nodes(&path), "{status} {path}");
    }
    machines.filter("delete table ip direct");
    // The watchdog tries again by itself.
    wait_direct(&machines).await;
}

#[tokio::test]
async fn calls_go_by_the_nodes_again_when_the_direct_way_breaks() {
    need_root!();
    let machines = start_pair(&["--direct-ports", DIRECT_PORTS]).await;
    for _ in 0..=HOT_CALLS {
        call(&machines).await;
    }
    wait_direct(&machines).await;
    machines.filter(BLOCK_DIRECT);
    // Calls on the broken connection may have run, so they fail, and are not repeated.
    eventually("calls go by the nodes", async || {
        let (status, path) = call(&machines).await;
        status == 200 && is_by_nodes(&path)
    })
    .await;
    machines.filter("delete table ip direct");
    wait_direct(&machines).await;
}

#[tokio::test]
async fn direct_calls_end_with_their_edge() {
    need_root!();
    let machines = start_pair(&["--direct-ports", DIRECT_PORTS]).await;
    for _ in 0..=HOT_CALLS {
        call(&machines).await;
    }
    wait_direct(&machines).await;
    write_pair(&machines, "");
    eventually("the edge is refused", async || {
        let (status, why) = call(&machines).await;
        status == 403 && why == "not_allowed"
    })
    .await;
    // Both nodes have applied it, so the callee admits no caller.
    write_pair(&machines, "back");
    wait_direct(&machines).await;
}

#[tokio::test]
async fn an_ended_callee_is_called_again_when_it_is_back() {
    need_root!();
    let mut machines = start_pair(&["--direct-ports", DIRECT_PORTS]).await;
    for _ in 0..=HOT_CALLS {
        call(&machines).await;
    }
    wait_direct(&machines).await;
    machines.end(1, Signal::KILL);
    machines.start(1).await;
    machines.wait_answered(0, "/function/front/back").await;
    // Another run of the node has another authority.
    wait_direct(&machines).await;
    let (status, path) = call(&machines).await;
    assert!(status == 200 && is_direct(&path), "{status} {path}");
}

/// A process that takes over opens sockets of its own for its instances.
#[tokio::test]
async fn a_process_that_takes_over_is_called_directly() {
    need_root!();
    let mut machines = start_pair(&["--direct-ports", DIRECT_PORTS]).await;
    for _ in 0..=HOT_CALLS {
        call(&machines).await;
    }
    wait_direct(&machines).await;
    let mut old = machines.take_over(1).await;
    old.wait_exit().await;
    wait_direct(&machines).await;
    let mut old = machines.take_over(0).await;
    old.wait_exit().await;
    machines.wait_answered(0, "/function/front/back").await;
    // The new instance counts its calls anew.
    wait_direct(&machines).await;
}
