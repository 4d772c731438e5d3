//! What is the same over every transport that a function can ask for, through `nearpath up`.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_testkit::{eventually, need_root, within};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::house::{House, http_function, script};
use crate::quic::{connect, inside, whole};

/// With what an answer says that went so.
const TRANSPORTS: [(&str, &str); 4] = [
    ("tcp", "http; not_nearer=no_domain"),
    ("quic", "quic; not_nearer=no_domain"),
    ("tls13", "tls; not_nearer=no_domain"),
    ("tls12", "tls; not_nearer=no_domain"),
];

/// Waits until a file is there, and says in another that it was reached, or that its caller left.
pub(crate) const SLOW: &str = r#"open("/tmp/reached", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.005)
self.answer(200, b"at last")"#;

/// Sends events; each waits for its turn.
pub(crate) const LINES: &str = r#"self.send_response(200)
self.send_header("Content-Type", "text/event-stream")
self.end_headers()
self.close_connection = True
for number in range(3):
    self.wfile.write(f"data: {number}\n\n".encode())
    self.wfile.flush()
    while not os.path.exists(f"/tmp/go{number}"):
        time.sleep(0.005)"#;

fn over(transport: &str, mut function: Value) -> Value {
    function["annotations"] = json!({ "nearpath.io/transport": transport });
    function
}

/// A call that is on its way once this returns; `/tmp/reached` says so.
async fn reached(house: &House, name: &str) -> tokio::task::JoinHandle<hyper::Result<hyper::Response<Incoming>>> {
    let mut sender = connect(house).await;
    let call = Request::post(format!("/function/{name}")).header("host", "x").body(whole("")).unwrap();
    let call = tokio::spawn(async move { sender.send_request(call).await });
    let reached = inside(house, name, "reached").await;
    eventually("the handler is reached", async || reached.exists()).await;
    call
}

async fn next(body: &mut Incoming) -> Bytes {
    within(body.frame()).await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test]
async fn events_come_as_they_are_sent() {
    need_root!();
    let house = House::start().await;
    for (transport, wanted) in TRANSPORTS {
        house.deploy_ready(&over(transport, http_function(&house.data_dir, transport, LINES))).await;
        let mut sender = connect(&house).await;
        let request = Request::post(format!("/function/{transport}")).header("host", "x").header("x-nearpath-path", "");
        let mut answer = within(sender.send_request(request.body(whole("")).unwrap())).await.unwrap();
        assert_eq!(answer.headers()["x-nearpath-path"], wanted);
        for number in 0..3 {
            assert_eq!(next(answer.body_mut()).await, format!("data: {number}\n\n"));
            std::fs::write(inside(&house, transport, &format!("go{number}")).await, "").unwrap();
        }
        assert!(within(answer.body_mut().frame()).await.is_none());
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_the_handlers_work() {
    need_root!();
    let house = House::start().await;
    for (transport, _) in TRANSPORTS {
        let slow = script(&house.data_dir, transport, "touch /tmp/reached; sleep 1000\n");
        house.deploy_ready(&over(transport, slow)).await;
        let call = reached(&house, transport).await;
        assert!(house.processes(transport).await.len() > 1);
        call.abort();
        eventually("only the watchdog is left", async || house.processes(transport).await.len() == 1).await;
    }
}

#[tokio::test]
async fn an_instance_that_is_killed_is_told_in_the_same_words() {
    need_root!();
    let house = House::start().await;
    for (transport, _) in TRANSPORTS {
        house.deploy_ready(&over(transport, http_function(&house.data_dir, transport, SLOW))).await;
        let call = reached(&house, transport).await;
        let pid = house.instance_pids(transport).await[0];
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        let answer = within(call).await.unwrap().unwrap();
        let told = (answer.status(), answer.headers()["x-nearpath-reason"].to_str().unwrap());
        assert_eq!(told, (StatusCode::BAD_GATEWAY, "instance_died"), "{transport}: {}", house.log());
    }
}
