//! A node checks the streams of other nodes by itself: who asks, and as long as they last.

use std::io;

use nearpath_testkit::{eventually, need_root, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::functions::{counted, write_handler};
use super::machines::Machines;
use super::scripted_peer::{self as peer, node_credentials};
use super::streams::redis_entry;

/// Full names of the functions.
const FRONT: &str = "front.openfaas-fn";
const STORE: &str = "store.openfaas-fn";

fn write_stack(machines: &Machines, edges: &str) {
    let front = counted("front", "nodes: [c],");
    let other = counted("other", "nodes: [c],");
    let store = redis_entry("nodes: [b],");
    let chains = format!("chains:\n  shop: {{edges: {{{edges}}}}}\n");
    let text = format!("functions:\n{front}{other}{store}{chains}");
    machines.write("stack.yml", &text);
}

/// `front` is a function of c, which the tests play, and `store` one of b.
async fn start_node() -> Machines {
    let mut machines = Machines::new(&["b", "c"]);
    write_handler(&machines);
    machines.write("store/about.txt", "The program is redis-server.\n");
    write_stack(&machines, "front: [store, other]");
    machines.start(0).await;
    machines.wait_instance(0).await;
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
