//! Device protocols at one node, with functions that run on others.

use std::process::{Command, Output};

use nearpath_testkit::{eventually, need_root, skip};

use super::functions::{counted, write_handler};
use super::machines::Machines;

/// Clients of both protocols, from Debian.
const CLIENTS: [&str; 2] = ["mosquitto_rr", "coap-client-notls"];

fn has_clients() -> bool {
    CLIENTS.iter().all(|client| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {client}")])
            .output();
        found.is_ok_and(|output| output.status.success())
    })
}

/// Runs a client on the machine of node a, which has the listeners.
fn run_client(machines: &Machines, program: &str, arguments: &[&str]) -> Output {
    let namespace = &machines.machines[0].namespace;
    namespace
        .run_program(Command::new(program).args(arguments))
        .unwrap()
}

/// `task` runs on b. `left` runs on b, `right` on b and c: both want the topic of messages.
async fn start_nodes() -> Machines {
    let mut machines = Machines::new(&["a", "b", "c"]);
    machines.options = vec![
        "--mqtt-listen",
        "127.0.0.1:1883",
        "--coap-listen",
        "127.0.0.1:5683",
    ];
    write_handler(&machines);
    let topic = "annotations: {topic: \"home/+/temperature\"},";
    let entries = [
        counted("task", "nodes: [b],"),
        counted("left", &format!("nodes: [b], {topic}")),
        counted("right", &format!("nodes: [b, c], {topic}")),
    ];
    machines.write("stack.yml", &format!("functions:\n{}", entries.concat()));
    machines.start_all().await;
    for function in ["task", "left", "right"] {
        machines
            .wait_answered(0, &format!("/function/{function}"))
            .await;
    }
    machines
}

#[tokio::test]
async fn mqtt_and_coap_reach_functions_of_other_nodes() {
    need_root!();
    if !has_clients() {
        skip!("clients are missing: apt-get install mosquitto-clients libcoap3-bin");
    }
    let machines = start_nodes().await;
    let ask = [
        "-h",
        "127.0.0.1",
        "-V",
        "5",
        "-q",
        "1",
        "-W",
        "20",
        "-m",
        "x",
        "-e",
        "answers/1",
        "-t",
    ];
    let topic = "functions/task/wait/0";
    let reply = run_client(&machines, "mosquitto_rr", &[&ask[..], &[topic]].concat());
    let text = String::from_utf8_lossy(&reply.stdout);
    assert_eq!(text, "ok\n", "{reply:?}\n{}", machines.logs());

    let path = "coap://127.0.0.1/function/task/wait/0?coap";
    let reply = run_client(
        &machines,
        "coap-client-notls",
        &["-B", "20", "-m", "get", path],
    );
    assert_eq!(
        String::from_utf8_lossy(&reply.stdout).trim(),
        "ok",
        "{reply:?}\n{}",
        machines.logs()
    );
    machines.executions.wait_for("coap").await;
    assert_eq!(machines.executions.repeated(), []);
}

/// A message calls each function that wants its topic once, wherever it runs.
#[tokio::test]
async fn a_message_calls_one_instance_of_each_function_over_all_nodes() {
    need_root!();
    if !has_clients() {
        skip!("clients are missing: apt-get install mosquitto-clients libcoap3-bin");
    }
    let machines = start_nodes().await;
    let calls = async |function: &str| {
        let series = format!(
            "gateway_function_invocation_total{{function_name=\"{function}.openfaas-fn\",code=\"200\"}}"
        );
        machines.metric(0, &series).await
    };
    let [left, right] = [calls("left").await, calls("right").await];
    let send = [
        "-h",
        "127.0.0.1",
        "-q",
        "1",
        "-m",
        "x",
        "-t",
        "home/hall/temperature",
    ];
    for _ in 0..5 {
        let sent = run_client(&machines, "mosquitto_pub", &send);
        assert!(sent.status.success(), "{sent:?}\n{}", machines.logs());
    }
    eventually("each message has called both", async || {
        calls("left").await == left + 5.0 && calls("right").await == right + 5.0
    })
    .await;
    // Nodes that delivered: all calls of a's are in their sum, and nothing more.
    let delivered = async |at: usize| {
        let series = "nearpath_node_calls_total{node=\"a\",code=\"200\"}";
        machines.metric(at, series).await
    };
    eventually("nodes have delivered what was called", async || {
        let called = calls("left").await + calls("right").await + calls("task").await;
        delivered(1).await + delivered(2).await == called
    })
    .await;
}
