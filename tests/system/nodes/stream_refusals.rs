//! A node checks the streams of other nodes by itself: who asks, and as long as they last.

use std::io;

use nearpath_testkit::{eventually, need_root, within};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::functions::{counted, function_entry, write_handler};
use super::machines::Machines;
use super::scripted_peer::{self as peer, node_credentials};
use super::streams::redis_entry;

/// Full names of the functions.
const FRONT: &str = "front.openfaas-fn";
const STORE: &str = "store.openfaas-fn";
const WITNESS: &str = "witness.openfaas-fn";

/// Port 7000: serves one connection after the other, and tells how the one before has ended.
const WITNESS_HANDLER: &str = r#"import errno, http.server, socket, threading
def serve():
    listener, end = socket.create_server(("", 7000)), "none"
    while True:
        connection, _ = listener.accept()
        try:
            connection.sendall((end + "\n").encode())
            while connection.recv(100):
                pass
            end = "end of stream"
        except OSError as error:
            end = errno.errorcode[error.errno]
        connection.close()
threading.Thread(target=serve, daemon=True).start()
http.server.HTTPServer(("127.0.0.1", 5000), http.server.BaseHTTPRequestHandler).serve_forever()
"#;

fn write_stack(machines: &Machines, edges: &str) {
    let front = counted("front", "nodes: [c],");
    let other = counted("other", "nodes: [c],");
    let store = redis_entry("nodes: [b],");
    let witness = function_entry("witness", "./witness", "nodes: [b],");
    // The edge can be removed by another call.
    let chains = format!("chains:\n  shop: {{edges: {{{edges}}}}}\n");
    let text = format!("functions:\n{front}{other}{store}{witness}{chains}");
    machines.write("stack.yml", &text);
}

/// `front` is a function of c, which the tests play, and `store` one of b.
async fn start_node() -> Machines {
    let mut machines = Machines::new(&["b", "c"]);
    write_handler(&machines);
    machines.write("store/about.txt", "The program is redis-server.\n");
    machines.write("witness/server.py", WITNESS_HANDLER);
    write_stack(&machines, "front: [store, other, witness]");
    machines.start(0).await;
    // A refusal because of a start would look like one of the cases.
    let series = "nearpath_instances{state=\"ready\"}";
    eventually("both instances are ready", async || {
        machines.metric(0, series).await == 2.0
    })
    .await;
    machines
}

#[tokio::test]
async fn streams_that_are_not_declared_are_refused_with_who_and_why() {
    need_root!();
    let machines = start_node().await;
    let authority = machines.authority();
    let (addr, trust) = (machines.machines[0].node_port(), peer::trust(&authority));
    let unknown = "missing.openfaas-fn";
    for (node, stream, status, why) in [
        (
            "d",
            (FRONT, STORE, 6379),
            403,
            "front.openfaas-fn does not run there",
        ),
        (
            "c",
            ("other", STORE, 6379),
            403,
            "that edge is not declared",
        ),
        (
            "c",
            (unknown, STORE, 6379),
            403,
            "knows no function missing.openfaas-fn",
        ),
        (
            "c",
            (FRONT, unknown, 6379),
            403,
            "that edge is not declared",
        ),
        (
            "c",
            (FRONT, STORE, 8080),
            403,
            "port 8080 of instances is the platform's own",
        ),
        (
            "c",
            (FRONT, "other", 6379),
            503,
            "other.openfaas-fn does not run on this node",
        ),
        (
            "c",
            (FRONT, STORE, 1),
            502,
            "no connection to port 1 of store.openfaas-fn",
        ),
        ("c", (FRONT, STORE, 0), 400, "expected function="),
    ] {
        let credentials = node_credentials(&authority, node);
        let opened = peer::open_stream(addr, (&credentials, &trust), stream).await;
        let (found, text) = opened.err().unwrap();
        assert!(found == status && text.contains(why), "{found}: {text}");
    }
    let line = "node c may not connect front.openfaas-fn to store.openfaas-fn: port 8080";
    eventually("refusals are in the log", async || {
        machines
            .logs()
            .contains("connection of another node was refused")
    })
    .await;
    assert!(
        !machines.logs().contains(line),
        "one line a minute for each node and reason"
    );
}

/// Only this node learns that the edge is gone: its peer goes on.
#[tokio::test]
async fn the_called_node_cuts_the_streams_of_a_removed_edge() {
    need_root!();
    let machines = start_node().await;
    let authority = machines.authority();
    let (addr, trust) = (machines.machines[0].node_port(), peer::trust(&authority));
    let c = node_credentials(&authority, "c");
    let stream = (FRONT, STORE, 6379);
    let mut stream = peer::open_stream(addr, (&c, &trust), stream).await.unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut pong = [0; 7];
    within(stream.read_exact(&mut pong)).await.unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
    write_stack(&machines, "front: [other]");
    let ended = within(stream.read(&mut pong)).await;
    // Without the end of TLS: its reader knows that more may have been meant.
    assert_eq!(
        ended.unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof,
        "{}",
        machines.logs()
    );
    let line = "connection of another node was cut";
    eventually(line, async || machines.logs().contains(line)).await;
}

/// A peer that breaks off: the instance must not take that for an orderly end.
#[tokio::test]
async fn a_stream_that_its_caller_breaks_is_a_reset_for_the_callee() {
    need_root!();
    let machines = start_node().await;
    let authority = machines.authority();
    let (addr, trust) = (machines.machines[0].node_port(), peer::trust(&authority));
    let c = node_credentials(&authority, "c");
    let mut end_before = Vec::new();
    for ends_orderly in [true, false, true] {
        let stream = peer::open_stream(addr, (&c, &trust), (FRONT, WITNESS, 7000));
        let mut stream = BufReader::new(stream.await.unwrap());
        let mut line = String::new();
        within(stream.read_line(&mut line)).await.unwrap();
        end_before.push(line);
        if ends_orderly {
            stream.shutdown().await.unwrap();
            let mut rest = String::new();
            within(stream.read_to_string(&mut rest)).await.unwrap();
        }
    }
    assert_eq!(end_before, ["none\n", "end of stream\n", "ECONNRESET\n"]);
}
