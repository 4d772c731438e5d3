//! Datagrams to functions without a ready instance: the first ones are held, wake the function, and reach one
//! instance.

use nearpath_testkit::{eventually, need_root};
use serde_json::{Value, json};

use crate::test_server::{TestServer, http_function};
use crate::virtual_addresses::{caller, run};

/// Answers each datagram at port 7000 with the instance's name, the number of the datagram, and its content.
const UDP_SERVER: &str = r#"import socket, threading, uuid
name, received = uuid.uuid4().hex, 0
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 7000))
def serve():
    global received
    while True:
        data, peer = udp.recvfrom(65535)
        received += 1
        udp.sendto(f"{name} {received} ".encode() + data, peer)
threading.Thread(target=serve, daemon=True).start()
"#;

/// A function that is ready when it answers datagrams.
pub(crate) fn udp_function(server: &TestServer, name: &str) -> Value {
    let function = http_function(&server.data_dir, name, "self.answer(200, b'')");
    let file = server.data_dir.join(format!("fn-{name}/server.py"));
    let source = std::fs::read_to_string(&file).unwrap();
    // The socket is there before the port that shows readiness.
    std::fs::write(&file, format!("{UDP_SERVER}{source}")).unwrap();
    function
}

/// Starts `store`, an UDP server, and `cart`, which calls it.
async fn start_pair() -> TestServer {
    let server = TestServer::start().await;
    server.deploy_ready(&udp_function(&server, "store")).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    server
}

async fn put_to_sleep(server: &TestServer) {
    server.scale("store", 0).await;
    server.wait_available("store", 0).await;
}

async fn dropped(server: &TestServer, reason: &str) -> u64 {
    let name = format!("nearpath_switch_datagrams_dropped_total{{reason=\"{reason}\"}}");
    server.metric_total(&name).await
}

/// Opens a socket of each kind, and keeps it for later programs. `ask` sends some datagrams over each, and returns what
/// came back: the instances, whether the order was kept, and the peers.
const OPEN_SOCKETS: &str = r#"
import builtins
def address(family):
    return socket.getaddrinfo("store", 7000, family, socket.SOCK_DGRAM)[0][4][:2]
def open_socket(family, is_connected):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(30)
    if is_connected: s.connect(address(family))
    return s
def send(s, content):
    try: s.getpeername()
    except OSError: return s.sendto(content, address(s.family))
    s.send(content)
def ask(times):
    for s in builtins.sockets.values():
        for number in range(times): send(s, str(number).encode())
    instances, orders, peers = set(), set(), {}
    for kind, s in builtins.sockets.items():
        answers = []
        for number in range(times):
            answer, peer = s.recvfrom(65535)
            peers.setdefault(kind, set()).add(peer[:2] == address(s.family))
            answers.append(answer.decode().split())
        instances.update(name for name, _, _ in answers)
        orders.add([int(number) for _, _, number in answers] == list(range(times)))
    return [len(instances), list(orders), {kind: list(equal) for kind, equal in peers.items()}]
if not hasattr(builtins, "sockets"):
    builtins.sockets = {
        "connected": open_socket(socket.AF_INET, True),
        "sendto": open_socket(socket.AF_INET, False),
        "ipv6": open_socket(socket.AF_INET6, True),
    }
"#;

async fn ask(server: &TestServer, times: usize) -> Value {
    let program = format!("{OPEN_SOCKETS}result = ask({times})");
    run(server, "cart", program.leak()).await
}

#[tokio::test]
async fn datagrams_wake_a_function_and_none_is_lost() {
    need_root!();
    let server = start_pair().await;
    put_to_sleep(&server).await;
    let complete = json!([1, [true], { "connected": [true], "sendto": [true], "ipv6": [true] }]);
    assert_eq!(ask(&server, 20).await, complete, "{}", server.log());
    let total = async |name| {
        let name = format!("nearpath_switch_datagrams_{name}_total");
        server.metric_total(&name).await
    };
    let held = total("held").await;
    assert!(held >= 3, "{held}: the first ones of each flow");
    assert_eq!(total("delivered").await, held);
    let open = "nearpath_switch_datagram_flows_open";
    assert_eq!(server.metric_total(open).await, 3);
    // Now one socket reaches the instance without the node, and the others go on.
    let before = total("forwarded").await;
    assert_eq!(ask(&server, 5).await, complete, "{}", server.log());
    assert_eq!(total("forwarded").await - before, 2 * 2 * 5);
    // They are woken again: two flows end with their instance, and begin with the next.
    put_to_sleep(&server).await;
    eventually("the flows have ended", async || {
        server.metric_total(open).await == 0
    })
    .await;
    assert_eq!(ask(&server, 20).await, complete, "{}", server.log());
}

/// More than a caller may have held.
const SEND_LARGE: &str = r#"
small, large = [open_socket(socket.AF_INET, True) for _ in range(2)]
small.send(b"wake")
small.recv(100)
# Connected while the function slept, it has no flow yet.
large.send(bytes(60000))
result = len(large.recv(65535).split(b" ", 2)[2])"#;

#[tokio::test]
async fn a_large_datagram_to_a_ready_instance_need_not_be_held() {
    need_root!();
    let server = start_pair().await;
    put_to_sleep(&server).await;
    let program = format!("{OPEN_SOCKETS}{SEND_LARGE}");
    let answer = run(&server, "cart", program.leak()).await;
    assert_eq!(answer, 60_000, "{}", server.log());
    let held = "nearpath_switch_datagrams_held_total";
    assert_eq!(server.metric_total(held).await, 1);
}

#[tokio::test]
async fn datagrams_beyond_the_share_of_a_caller_are_dropped_and_counted() {
    need_root!();
    let server = TestServer::start().await;
    let mut broken = udp_function(&server, "store");
    broken["envProcess"] = "sleep 1000".into();
    broken["annotations"] = json!({ "nearpath.io/cold-timeout": "500ms" });
    server.deploy(&broken).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    let program = r#"s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(100): s.sendto(bytes(1000), ("store", 7000))
result = "sent""#;
    assert_eq!(run(&server, "cart", program).await, "sent");
    // A caller gets half of 64 KiB.
    let held = (32 << 10) / (1000 + 128);
    eventually("the held ones are dropped, too", async || {
        dropped(&server, "cold_timeout").await == held
    })
    .await;
    assert_eq!(dropped(&server, "no_space").await, 100 - held);
    for name in [
        "nearpath_switch_datagrams_delivered_total",
        "nearpath_switch_datagram_flows_open",
    ] {
        assert_eq!(server.metric_total(name).await, 0);
    }
    for why in ["nearpath.io/cold-timeout", "has its share of the bytes"] {
        eventually(why, async || server.log().contains(why)).await;
    }
}

/// Sends as fast as it can, from more sockets than a caller may have flows.
const FLOOD: &str = r#"import time
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(300)]
end = time.time() + 3
while time.time() < end:
    for s in sockets: s.sendto(bytes(200), ("10.60.0.0", 7000))
result = "flooded""#;

#[tokio::test]
async fn a_caller_that_floods_takes_no_place_of_others() {
    need_root!();
    let server = start_pair().await;
    put_to_sleep(&server).await;
    let mut broken = udp_function(&server, "broken");
    broken["envProcess"] = "sleep 1000".into();
    server.deploy(&broken).await;
    server
        .deploy_ready(&caller(&server, "flooder", "broken"))
        .await;
    let address = server.describe("broken").await["virtualAddress"].clone();
    let flood = FLOOD.replace("10.60.0.0", address.as_str().unwrap());
    let flood = run(&server, "flooder", flood.leak());
    let asked = async {
        eventually("the flood has its share", async || {
            dropped(&server, "no_space").await > 0
        })
        .await;
        ask(&server, 20).await
    };
    let (flooded, answers) = tokio::join!(flood, asked);
    assert_eq!(flooded, "flooded");
    let complete = json!([1, [true], { "connected": [true], "sendto": [true], "ipv6": [true] }]);
    assert_eq!(answers, complete, "{}", server.log());
}

#[tokio::test]
async fn a_flow_stays_with_one_of_several_instances() {
    need_root!();
    let server = start_pair().await;
    put_to_sleep(&server).await;
    let one = r#"builtins.sockets = {str(i): open_socket(socket.AF_INET, True) for i in range(COUNT)}
result = ask(1)[0]"#;
    let first = format!("{OPEN_SOCKETS}{}", one.replace("COUNT", "1"));
    assert_eq!(run(&server, "cart", first.leak()).await, 1);
    server.scale("store", 2).await;
    server.wait_available("store", 2).await;
    assert_eq!(ask(&server, 20).await[0], 1, "{}", server.log());
    // Several flows that wait are spread over both.
    put_to_sleep(&server).await;
    let open = format!(
        "{OPEN_SOCKETS}{}",
        one.replace("COUNT", "8").replace("ask(1)[0]", "0")
    );
    assert_eq!(run(&server, "cart", open.leak()).await, 0);
    server.scale("store", 2).await;
    server.wait_available("store", 2).await;
    for _ in 0..3 {
        assert_eq!(ask(&server, 2).await[0], 2, "{}", server.log());
    }
    let per_socket = r#"
sockets = builtins.sockets
def instances_of(kind):
    builtins.sockets = {kind: sockets[kind]}
    return ask(20)[0]
result = [instances_of(kind) for kind in sockets]"#;
    let program = format!("{OPEN_SOCKETS}{per_socket}");
    assert_eq!(
        run(&server, "cart", program.leak()).await,
        json!(vec![1; 8])
    );
}

/// Sends until an error, one datagram after each answer.
const USE_UNTIL_ERROR: &str = r#"
import time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("store", 7000))
s.settimeout(1)
end = time.time() + 30
while time.time() < end:
    s.send(b"x")
    try: s.recv(100)
    except TimeoutError: pass
    time.sleep(0.01)
result = "no error""#;

#[tokio::test]
async fn a_flow_ends_with_its_edge() {
    need_root!();
    let server = start_pair().await;
    put_to_sleep(&server).await;
    let used = run(&server, "cart", USE_UNTIL_ERROR);
    let open = "nearpath_switch_datagram_flows_open";
    let removed = async {
        eventually("the flow is forwarded", async || {
            server
                .metric_total("nearpath_switch_datagrams_delivered_total")
                .await
                > 0
        })
        .await;
        server.deploy(&caller(&server, "cart", "absent")).await;
        eventually("the node has ended it", async || {
            server.metric_total(open).await == 0
        })
        .await;
    };
    // The request keeps the instance of the old revision draining.
    let (end, ()) = tokio::join!(used, removed);
    let errors = ["ECONNABORTED", "EDESTADDRREQ"];
    assert!(
        errors.contains(&end.as_str().unwrap()),
        "{end}\n{}",
        server.log()
    );
}

#[tokio::test]
async fn a_connected_socket_loses_its_ended_instance_and_connects_again() {
    need_root!();
    let server = start_pair().await;
    let open = r#"import builtins
builtins.s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
builtins.s.settimeout(30)
builtins.s.connect(("store", 7000))
builtins.s.send(b"x")
builtins.first = builtins.s.recv(100).split()[0]
result = "answered""#;
    assert_eq!(run(&server, "cart", open).await, "answered");
    let forwarded = "nearpath_switch_datagrams_forwarded_total";
    assert_eq!(server.metric_total(forwarded).await, 0, "straight to it");
    put_to_sleep(&server).await;
    let send = "import builtins\nbuiltins.s.send(b'x')\nresult = 'sent'";
    eventually("the socket has lost its peer", async || {
        let end = run(&server, "cart", send).await;
        // Before, there may be errors of the network: the instance ends first, its address later.
        end == "EDESTADDRREQ" || end == "ECONNABORTED"
    })
    .await;
    let again = r#"import builtins
builtins.s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
builtins.s.connect(("store", 7000))
builtins.s.send(b"x")
# The socket may still have answers of the first instance, from before its end.
while (answer := builtins.s.recv(100).decode().split())[0] == builtins.first.decode(): pass
result = answer[1]"#;
    assert_eq!(run(&server, "cart", again).await, "1", "{}", server.log());
}

#[tokio::test]
async fn a_forwarded_flow_keeps_its_function_awake() {
    need_root!();
    let server = TestServer::start().await;
    let mut store = udp_function(&server, "store");
    let label = |name: &str| format!("com.openfaas.scale.{name}");
    store["labels"] = json!({ label("zero"): "true", label("zero-duration"): "1s" });
    server.deploy_ready(&store).await;
    server.deploy_ready(&caller(&server, "cart", "store")).await;
    server.wait_available("store", 0).await;
    // The kernel counts no datagram of a connected socket. Several polls of the autoscaler see the flow.
    let program = r#"import time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(30)
s.connect(("store", 7000))
instances = set()
for _ in range(40):
    s.send(b"x")
    instances.add(s.recv(100).decode().split()[0])
    time.sleep(0.1)
result = len(instances)"#;
    assert_eq!(run(&server, "cart", program).await, 1, "{}", server.log());
}
