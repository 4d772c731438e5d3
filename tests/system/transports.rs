//! Behaviour that is the same over every transport that a function can request.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_testkit::{eventually, need_root, within};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::quic::{connect_http1, full_body, instance_file};
use crate::test_server::{TestServer, http_function, script_function};

/// Transports with their path header.
const TRANSPORTS: [(&str, &str); 4] = [
    ("tcp", "http; obstacle=no_domain"),
    ("quic", "quic; obstacle=no_domain"),
    ("tls13", "tls; obstacle=no_domain"),
    ("tls12", "tls; obstacle=no_domain"),
];

/// Waits for a file; records in another that it was called, or that its caller left.
pub(crate) const SLOW_BODY: &str = r#"open("/tmp/reached", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.005)
self.answer(200, b"at last")"#;

/// Sends events, each after a file appears.
pub(crate) const EVENTS_BODY: &str = r#"self.send_response(200)
self.send_header("Content-Type", "text/event-stream")
self.end_headers()
self.close_connection = True
for number in range(3):
    self.wfile.write(f"data: {number}\n\n".encode())
    self.wfile.flush()
    while not os.path.exists(f"/tmp/go{number}"):
        time.sleep(0.005)"#;

fn with_transport(transport: &str, mut function: Value) -> Value {
    function["annotations"] = json!({ "nearpath.io/transport": transport });
    function
}

/// Starts a call and returns once the handler runs, which `/tmp/reached` shows.
async fn begin_call(
    server: &TestServer,
    name: &str,
) -> tokio::task::JoinHandle<hyper::Result<hyper::Response<Incoming>>> {
    let mut sender = connect_http1(server).await;
    let call = Request::post(format!("/function/{name}"))
        .header("host", "x")
        .body(full_body(""))
        .unwrap();
    let call = tokio::spawn(async move { sender.send_request(call).await });
    let reached = instance_file(server, name, "reached").await;
    eventually("the handler is reached", async || reached.exists()).await;
    call
}

async fn next_chunk(body: &mut Incoming) -> Bytes {
    within(body.frame())
        .await
        .unwrap()
        .unwrap()
        .into_data()
        .unwrap()
}

#[tokio::test]
async fn events_come_as_they_are_sent() {
    need_root!();
    let server = TestServer::start().await;
    for (transport, wanted) in TRANSPORTS {
        server
            .deploy_ready(&with_transport(
                transport,
                http_function(&server.data_dir, transport, EVENTS_BODY),
            ))
            .await;
        let mut sender = connect_http1(&server).await;
        let request = Request::post(format!("/function/{transport}"))
            .header("host", "x")
            .header("x-nearpath-path", "");
        let mut answer = within(sender.send_request(request.body(full_body("")).unwrap()))
            .await
            .unwrap();
        assert_eq!(answer.headers()["x-nearpath-path"], wanted);
        for number in 0..3 {
            assert_eq!(
                next_chunk(answer.body_mut()).await,
                format!("data: {number}\n\n")
            );
            std::fs::write(
                instance_file(&server, transport, &format!("go{number}")).await,
                "",
            )
            .unwrap();
        }
        assert!(within(answer.body_mut().frame()).await.is_none());
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_the_handlers_work() {
    need_root!();
    let server = TestServer::start().await;
    for (transport, _) in TRANSPORTS {
        let slow = script_function(
            &server.data_dir,
            transport,
            "touch /tmp/reached; sleep 1000\n",
        );
        server.deploy_ready(&with_transport(transport, slow)).await;
        let call = begin_call(&server, transport).await;
        assert!(server.instance_processes(transport).await.len() > 1);
        call.abort();
        eventually("only the watchdog is left", async || {
            server.instance_processes(transport).await.len() == 1
        })
        .await;
    }
}

#[tokio::test]
async fn a_killed_instance_is_reported_the_same_over_every_transport() {
    need_root!();
    let server = TestServer::start().await;
    for (transport, _) in TRANSPORTS {
        server
            .deploy_ready(&with_transport(
                transport,
                http_function(&server.data_dir, transport, SLOW_BODY),
            ))
            .await;
        let call = begin_call(&server, transport).await;
        let pid = server.instance_pids(transport).await[0];
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        let answer = within(call).await.unwrap().unwrap();
        let report = (
            answer.status(),
            answer.headers()["x-nearpath-reason"].to_str().unwrap(),
        );
        assert_eq!(
            report,
            (StatusCode::BAD_GATEWAY, "instance_died"),
            "{transport}: {}",
            server.log()
        );
    }
}
