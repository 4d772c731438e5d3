//! Functions connect by name, with any TCP protocol, to functions that run on other nodes only.

use http::Request;
use nearpath_testkit::{eventually, need_root};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::functions::function_entry;
use super::machines::Machines;

/// Runs the program in the body of a request; responds with what it assigns to `result`, or with its error.
const RUN_HANDLER: &str = r#"import errno, hashlib, http.server, json, socket, threading, time
release = threading.Event()
def ask(host, port, message):
    with socket.create_connection((host, port), 20) as connection:
        connection.sendall(message)
        return connection.recv(100).decode()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        program = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        names = dict(globals(), result=None)
        try:
            exec(program.decode(), names)
            result = names["result"]
        except OSError as error:
            result = errno.errorcode.get(error.errno, str(error))
        body = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
"#;

/// Port 7000: reads to the end, and answers with the digest and as many bytes as its first line says. Port
/// 7001: HTTP.
const SINK_HANDLER: &str = r#"import hashlib, http.server, socket, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"no")
    def log_message(self, *args):
        pass
def answer(connection):
    with connection, connection.makefile("rb") as sent:
        count, digest = int(sent.readline()), hashlib.sha256()
        while part := sent.read(65536):
            digest.update(part)
        connection.sendall(digest.hexdigest().encode())
        for number in range(count >> 20):
            connection.sendall(number.to_bytes(4, "big") * (1 << 18))
def serve():
    listener = socket.create_server(("", 7000))
    while True:
        threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
threading.Thread(target=http.server.ThreadingHTTPServer(("", 7001), Handler).serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
"#;

/// Uses a connection until it ends, and tells how.
const HOLD_CONNECTION: &str = r#"connection = socket.create_connection(("store", 6379), 20)
result, end = "still open", time.time() + 30
while time.time() < end:
    connection.sendall(b"PING\r\n")
    if not connection.recv(100):
        result = "end of stream"
        break
    time.sleep(0.01)"#;

/// Series of the open streams of an edge, at the caller's node.
const OPEN_STREAMS: &str = r#"nearpath_edge_node_streams_open{caller="cart.openfaas-fn",callee="store.openfaas-fn",direction="out"}"#;

const DECLARED: &str = "chains:\n  shop: {edges: {cart: [store, sink]}}\n";
const UNDECLARED: &str = "chains:\n  shop: {edges: {cart: [sink], sink: [store]}}\n";

/// Entry of a Redis server in a stack file.
pub(super) fn redis_entry(more: &str) -> String {
    format!(
        "  store: {{handler: ./store, {more} \
         fprocess: redis-server --port 6379 --save '' --protected-mode no, \
         environment: {{mode: http, upstream_url: \"http://127.0.0.1:6379\"}}}}\n"
    )
}

fn write_stack(machines: &Machines, chains: &str) {
    let cart = function_entry("cart", "./cart", "nodes: [a],");
    let sink = function_entry("sink", "./sink", "nodes: [b],");
    let store = redis_entry("nodes: [b], labels: {com.openfaas.scale.min: 0},");
    machines.write(
        "stack.yml",
        &format!("functions:\n{cart}{sink}{store}{chains}"),
    );
}

/// `cart` runs on a. Its callees, `store` and `sink`, run on b. `store` is asleep.
async fn start_nodes() -> Machines {
    let mut machines = new_machines();
    start(&mut machines).await;
    machines
}

fn new_machines() -> Machines {
    let machines = Machines::new(&["a", "b"]);
    machines.write("cart/server.py", RUN_HANDLER);
    machines.write("sink/server.py", SINK_HANDLER);
    machines.write("store/about.txt", "The program is redis-server.\n");
    write_stack(&machines, DECLARED);
    machines
}

async fn start(machines: &mut Machines) {
    machines.start_all().await;
    machines.wait_instance(0).await;
    machines.wait_instance(1).await;
}

/// Waits until b has this many ready instances.
async fn wait_ready(machines: &Machines, count: f64) {
    let series = "nearpath_instances{state=\"ready\"}";
    let what = format!("{count} instances are ready\n{}", machines.logs());
    eventually(&what, async || machines.metric(1, series).await == count).await;
}

async fn run(machines: &Machines, program: &'static str) -> Value {
    let request = Request::post("/function/cart").header("host", "test");
    let response = machines
        .send(0, request.body(program.into()).unwrap())
        .await;
    let text = String::from_utf8_lossy(response.body());
    assert_eq!(response.status(), 200, "{text}\n{}", machines.logs());
    serde_json::from_str(&text).unwrap()
}

async fn wait_open(machines: &Machines) {
    eventually("the stream is open", async || {
        machines.metric(0, OPEN_STREAMS).await == 1.0
    })
    .await;
}

#[tokio::test]
async fn redis_on_another_node_is_woken_and_used_by_name() {
    need_root!();
    let machines = start_nodes().await;
    let program =
        r#"result = [ask("store", 6379, b"SET a 1\r\n"), ask("store.shop", 6379, b"GET a\r\n")]"#;
    let answer = run(&machines, program).await;
    assert_eq!(
        answer,
        json!(["+OK\r\n", "$1\r\n1\r\n"]),
        "{}",
        machines.logs()
    );
    for (at, direction) in [(0, "out"), (1, "in")] {
        let edge = format!(
            r#"nearpath_edge_node_streams_total{{caller="cart.openfaas-fn",callee="store.openfaas-fn",direction="{direction}"}}"#
        );
        assert_eq!(machines.metric(at, &edge).await, 2.0, "{direction}");
    }
}

/// `sink` is the reference: it sleeps meanwhile. Redis would forget its value.
#[tokio::test]
async fn an_open_stream_keeps_a_function_awake() {
    need_root!();
    let machines = start_nodes().await;
    let labels = "com.openfaas.scale.zero: true, com.openfaas.scale.zero-duration: 1s";
    let on_b = format!("nodes: [b], labels: {{{labels}}},");
    let cart = function_entry("cart", "./cart", "nodes: [a],");
    let sink = function_entry("sink", "./sink", &on_b);
    let store = redis_entry(&on_b);
    machines.write(
        "stack.yml",
        &format!("functions:\n{cart}{sink}{store}{DECLARED}"),
    );
    // Both wake with their deployment, and sleep.
    wait_ready(&machines, 2.0).await;
    wait_ready(&machines, 0.0).await;
    let program = r#"connection = socket.create_connection(("store", 6379), 20)
connection.sendall(b"SET a 1\r\n")
connection.recv(100)
release.wait(60)
connection.sendall(b"GET a\r\n")
result = connection.recv(100).decode()"#;
    let held = run(&machines, program);
    let slept = async {
        wait_open(&machines).await;
        run(&machines, r#"ask("sink", 7001, b"GET / HTTP/1.0\r\n\r\n")"#).await;
        wait_ready(&machines, 2.0).await;
        wait_ready(&machines, 1.0).await;
        run(&machines, "release.set()").await;
    };
    let (answer, ()) = tokio::join!(held, slept);
    assert_eq!(answer, "$1\r\n1\r\n", "{}", machines.logs());
    // Control: it sleeps when the stream has ended.
    wait_ready(&machines, 0.0).await;
}

#[tokio::test]
async fn other_errors_of_an_edge_stay_those_of_the_callee() {
    need_root!();
    let machines = start_nodes().await;
    let program = r#"result = ask("sink", 7001, b"GET / HTTP/1.1\r\nHost: sink\r\n\r\n")
try:
    ask("sink", 1, b"")
except OSError as error:
    result = [result[:12], errno.errorcode[error.errno]]"#;
    let answer = run(&machines, program).await;
    assert_eq!(
        answer,
        json!(["HTTP/1.1 404", "ECONNRESET"]),
        "{}",
        machines.logs()
    );
    let why = "no connection to port 1 of sink.openfaas-fn: its instance cannot be reached";
    eventually(why, async || machines.logs().contains(why)).await;
}

#[tokio::test]
async fn half_closes_and_fifty_megabytes_cross_nodes_whole() {
    need_root!();
    let machines = start_nodes().await;
    let program = r#"connection = socket.create_connection(("sink", 7000), 60)
sent, received, count = hashlib.sha256(), hashlib.sha256(), 50 << 20
connection.sendall(b"%d\n" % count)
for number in range(50):
    part = (number * 7).to_bytes(4, "little") * (1 << 18)
    sent.update(part)
    connection.sendall(part)
connection.shutdown(socket.SHUT_WR)
size, digest = 0, b""
while part := connection.recv(65536):
    head = 64 - len(digest)
    digest += part[:head]
    received.update(part[head:])
    size += len(part[head:])
expected = hashlib.sha256(b"".join(number.to_bytes(4, "big") * (1 << 18) for number in range(50)))
result = [digest.decode() == sent.hexdigest(), size, received.digest() == expected.digest()]"#;
    let answer = run(&machines, program).await;
    assert_eq!(answer, json!([true, 50 << 20, true]), "{}", machines.logs());
}

/// Only the caller's node learns of it: the kernel cuts the caller's own socket.
#[tokio::test]
async fn the_end_of_an_edge_at_the_callers_node_cuts_its_streams_at_both() {
    need_root!();
    let mut machines = new_machines();
    machines.copy_source(1);
    start(&mut machines).await;
    let held = run(&machines, HOLD_CONNECTION);
    let removed = async {
        wait_open(&machines).await;
        write_stack(&machines, UNDECLARED);
    };
    let (end, ()) = tokio::join!(held, removed);
    assert_eq!(end, "ECONNABORTED", "{}", machines.logs());
    for (at, direction) in [(0, "out"), (1, "in")] {
        let open = OPEN_STREAMS.replace("out", direction);
        let what = format!("no stream is left at node {at}\n{}", machines.logs());
        eventually(&what, async || machines.metric(at, &open).await == 0.0).await;
    }
}

#[tokio::test]
async fn the_death_of_the_callees_node_is_a_reset() {
    need_root!();
    let mut machines = start_nodes().await;
    let gateway = machines.machines[0].gateway();
    let request = Request::post("/function/cart").header("host", "test");
    let request = request.body(HOLD_CONNECTION.into()).unwrap();
    let held = tokio::spawn(crate::test_server::send_request(gateway, request));
    wait_open(&machines).await;
    machines.end(1, Signal::KILL);
    let response = nearpath_testkit::within(held).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(response.body());
    assert_eq!(text, "\"ECONNRESET\"", "{}", machines.logs());
}
