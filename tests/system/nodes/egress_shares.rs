//! Limits of destinations outside, which nodes divide.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use nearpath_testkit::{eventually, need_root};
use serde_json::Value;

use super::functions::function_entry;
use super::machines::Machines;

/// Port of the destination.
const PORT: u16 = 7_000;

/// Handler that opens connections and keeps them.
const CLIENT_HANDLER: &str = r#"import http.server, socket
kept = []
def is_alive(connection):
    try:
        connection.sendall(b"x")
        return connection.recv(1) == b"x"
    except OSError:
        return False
def opened():
    try:
        connection = socket.create_connection(("ADDRESS", PORT), 20)
    except OSError:
        return False
    kept.append(connection)
    return is_alive(connection)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        verb, _, count = self.path.strip("/").partition("/")
        if verb == "open":
            said = sum(opened() for _ in range(int(count)))
        else:
            said = sum(is_alive(connection) for connection in kept)
        body = str(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
"#;

/// Serves an echo on the router until the end of the process.
fn serve_echo() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream);
                let mut byte = [0];
                while reader.read_exact(&mut byte).is_ok() && writer.write_all(&byte).is_ok() {}
            });
        }
    });
}

/// Writes a function `first` on node a, and one named `second` on `nodes`, to one destination.
fn write_functions(machines: &Machines, destination: &str, nodes: Option<&str>) {
    let entry = |name, nodes| {
        let more = format!("nodes: [{nodes}], egress: [\"{destination}\"],");
        function_entry(name, "./client", &more)
    };
    let second = nodes.map(|nodes| entry("second", nodes));
    let functions = entry("first", "a") + &second.unwrap_or_default();
    machines.write("stack.yml", &format!("functions:\n{functions}"));
}

/// Row of `first` in the status of all pools.
fn pool_row(machines: &Machines) -> Value {
    let rows = machines.run_command(0, &["pool", "ls", "--json"]);
    let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
    let is_first = |row: &Value| row["owner"] == "first.openfaas-fn";
    rows.into_iter().find(is_first).unwrap_or_default()
}

async fn wait_share(machines: &Machines, share: [Option<u64>; 3]) {
    let what = format!("the share is {share:?}\n{}", machines.logs());
    eventually(&what, async || {
        let row = pool_row(machines);
        let fields = ["max", "declaredMax", "sharingNodes"];
        fields.map(|name| row[name].as_u64()) == share
    })
    .await;
}

async fn count(machines: &Machines, path: &str) -> String {
    let answer = machines.get(0, path).await;
    String::from_utf8_lossy(answer.body()).into_owned()
}

#[tokio::test]
async fn a_node_opens_its_share_and_keeps_what_is_in_use_when_the_share_changes() {
    need_root!();
    let mut machines = Machines::new(&["a", "b", "c", "outside"]);
    serve_echo();
    // Not on the link of a node, and reached by all of them.
    let address = machines.machines[3].link.first_end().v4;
    let handler = CLIENT_HANDLER.replace("ADDRESS", &address.to_string());
    let handler = handler.replace("PORT", &PORT.to_string());
    machines.write("client/server.py", &handler);
    let destination = format!("{address}:{PORT} max=7 warm=0 wait=100ms");
    write_functions(&machines, &destination, Some("b"));
    machines.start(0).await;
    machines.wait_answered(0, "/function/first").await;
    wait_share(&machines, [Some(3), Some(7), Some(2)]).await;
    assert_eq!(count(&machines, "/function/first/open/5").await, "3");

    write_functions(&machines, &destination, Some("b, c"));
    wait_share(&machines, [Some(2), Some(7), Some(3)]).await;
    assert_eq!(
        count(&machines, "/function/first/alive").await,
        "3",
        "connections in use stay"
    );
    assert_eq!(count(&machines, "/function/first/open/1").await, "0");

    // The whole limit, once no other node has a part of it.
    write_functions(&machines, &destination, None);
    wait_share(&machines, [Some(7), None, None]).await;
    assert_eq!(count(&machines, "/function/first/open/9").await, "4");
    assert_eq!(count(&machines, "/function/first/alive").await, "7");
}

#[tokio::test]
async fn more_nodes_than_connections_are_named_in_the_log() {
    need_root!();
    let mut machines = Machines::new(&["a", "b", "c"]);
    machines.write("client/server.py", CLIENT_HANDLER);
    write_functions(&machines, "192.0.2.1:7000 max=1 warm=0", Some("b"));
    machines.start(0).await;
    machines.wait_answered(0, "/function/first").await;
    let warning = "max=1 is less than the 2 nodes that share it";
    eventually("the log warns", async || {
        machines
            .run_command(0, &["logs", "first"])
            .contains(warning)
    })
    .await;
    wait_share(&machines, [Some(1), Some(1), Some(2)]).await;
}
