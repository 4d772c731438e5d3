//! Events of topics, whose subscribers run on other nodes.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use nearpath_testkit::{copy_program, eventually, need_root, program};

use super::functions::function_entry;
use super::machines::Machines;
use super::scripted_peer::{self as peer, call_of, node_credentials};

/// Handler without an SDK: responds with a line for each event: topic, publisher, body.
const LISTING_HANDLER: &str = r#"import http.server
events = []
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        topic, caller = self.headers.get("X-Topic"), self.headers.get("X-Nearpath-Caller")
        if topic:
            events.append(f"{topic} {caller} {body}\n")
        text = "".join(events).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_GET = do_POST
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
"#;
const PUBLISHER: &str = "orders.openfaas-fn";
const SUBSCRIBER: &str = "mail.openfaas-fn";

/// Entry of a function of the chain `shop`, with the SDK.
fn sdk_function(name: &str, nodes: &str, topics: &str) -> String {
    format!(
        "  {name}: {{handler: ./sdk, fprocess: ./function, nodes: [{nodes}], \
         annotations: {{nearpath.io/chain: shop, {topics}}}, \
         environment: {{mode: http, upstream_url: \"http://127.0.0.1:5000\"}}}}\n"
    )
}

/// `orders` publishes on a. `mail` and `audit` subscribe on b, `archive` on a and b. `ads` on b wants other
/// topics.
async fn start_nodes() -> Machines {
    let mut machines = Machines::new(&["a", "b"]);
    machines.write("listing/server.py", LISTING_HANDLER);
    machines.write("sdk/.keep", "");
    copy_program(
        program("test-event-function"),
        machines.source().join("sdk/function"),
    );
    let subscribes = |filter: &str| format!("nearpath.io/subscribes: \"{filter}\"");
    let plain = format!(
        "nodes: [b], annotations: {{nearpath.io/chain: shop, {}}},",
        subscribes("#")
    );
    let functions = [
        sdk_function("orders", "a", "nearpath.io/publishes: \"order/#\""),
        sdk_function("mail", "b", &subscribes("order/+")),
        sdk_function("archive", "a, b", &subscribes("order/#")),
        sdk_function("ads", "b", &subscribes("stock/#")),
        function_entry("audit", "./listing", &plain),
    ];
    machines.write("stack.yml", &format!("functions:\n{}", functions.concat()));
    machines.start_all().await;
    for function in ["orders", "mail", "archive", "ads", "audit"] {
        machines
            .wait_answered(0, &format!("/function/{function}/events"))
            .await;
    }
    machines
}

async fn publish(machines: &Machines, topic: &str, body: impl Into<Bytes>) -> String {
    let path = format!("/function/orders/publish/{topic}");
    let request = Request::post(path).header("host", "localhost");
    let request = request.body(Full::new(body.into())).unwrap();
    let response = machines.send(0, request).await;
    String::from_utf8(response.body().to_vec()).unwrap()
}

/// Returns the events that a function has received, read at the gateway of a node.
async fn events(machines: &Machines, at: usize, function: &str) -> String {
    let path = format!("/function/{function}/events");
    let response = machines.get(at, &path).await;
    String::from_utf8(response.body().to_vec()).unwrap()
}

#[tokio::test]
async fn an_event_reaches_each_subscriber_once_on_whichever_node_it_runs() {
    need_root!();
    let machines = start_nodes().await;
    // Until all endpoints have joined the memory, events miss some subscribers, or come over HTTP.
    eventually("all take events", async || {
        let report = publish(&machines, "order/seen", "").await;
        report == "2 0" && !events(&machines, 1, "mail").await.is_empty()
    })
    .await;
    assert_eq!(publish(&machines, "order/placed", "7").await, "2 0");
    let expected = format!("order/placed {PUBLISHER} 7\n");
    let what = format!("mail has the event\n{}", machines.logs());
    eventually(&what, async || {
        events(&machines, 1, "mail").await.ends_with(&expected)
    })
    .await;
    eventually("audit has the event", async || {
        events(&machines, 1, "audit").await.ends_with(&expected)
    })
    .await;
    eventually("archive has the event", async || {
        events(&machines, 0, "archive").await.ends_with(&expected)
    })
    .await;
    assert_eq!(
        events(&machines, 1, "archive").await,
        "",
        "archive runs on a, so b gets no event"
    );
    assert_eq!(events(&machines, 1, "ads").await, "");
    for (at, function) in [(0, "archive"), (1, "mail"), (1, "audit")] {
        let received = events(&machines, at, function).await;
        assert_eq!(
            received.matches(&expected).count(),
            1,
            "{function}: {received}"
        );
    }
    let count = async |outcome: &str| {
        let series = format!("nearpath_remote_events_total{{outcome=\"{outcome}\"}}");
        machines.metric(0, &series).await
    };
    assert!(count("sent").await >= 3.0 && count("dropped").await == 0.0);
    // Too large for another node, not for the memory of this one.
    let large = "x".repeat(256 * 1024 + 1);
    assert_eq!(
        publish(&machines, "order/placed", large.clone()).await,
        "2 0"
    );
    eventually("the event is dropped", async || {
        count("dropped").await == 1.0
    })
    .await;
    eventually("archive has the event", async || {
        events(&machines, 0, "archive").await.contains(&large)
    })
    .await;
    publish(&machines, "order/placed", "8").await;
    eventually("mail has the next event", async || {
        events(&machines, 1, "mail").await.ends_with(" 8\n")
    })
    .await;
    assert!(!events(&machines, 1, "mail").await.contains(&large));
}

/// Another node may send the events that both functions declare, and no others.
#[tokio::test]
async fn events_that_are_not_declared_are_refused() {
    need_root!();
    let machines = start_nodes().await;
    let authority = machines.authority();
    let (trust, credentials) = (peer::trust(&authority), node_credentials(&authority, "a"));
    let send = async |function: &str, caller: Option<&str>, topic: &'static str| {
        let mut request = call_of(function, caller);
        let topic = topic.parse().unwrap();
        request.headers_mut().insert("x-nearpath-topic", topic);
        let addr = machines.machines[1].node_port();
        peer::send_over_tls(addr, (&credentials, &trust), request)
            .await
            .unwrap()
    };
    let (status, text) = send(SUBSCRIBER, Some(PUBLISHER), "order/placed").await;
    assert!(
        status < 300,
        "a declared event is accepted: {status} {text}"
    );
    for (function, caller, topic, why) in [
        (
            SUBSCRIBER,
            Some(PUBLISHER),
            "stock/empty",
            "orders.openfaas-fn does not publish it",
        ),
        (
            SUBSCRIBER,
            Some(PUBLISHER),
            "order/paid/now",
            "mail.openfaas-fn does not subscribe to it",
        ),
        (
            SUBSCRIBER,
            Some(PUBLISHER),
            "order/+",
            "a topic has no + and #",
        ),
        (
            SUBSCRIBER,
            Some("mail.openfaas-fn"),
            "order/placed",
            "it runs on b",
        ),
        (
            SUBSCRIBER,
            None,
            "order/placed",
            "needs the name of the function",
        ),
    ] {
        let (status, text) = send(function, caller, topic).await;
        assert!(
            status == 403 && text.contains(why),
            "{topic}: {status} {text}"
        );
    }
    // The node removes this field from requests of clients, so this is a call.
    let request = Request::get("/function/mail/events").header("host", "localhost");
    let request = request.header("x-nearpath-topic", "order/placed");
    let response = machines
        .send(1, request.body(Default::default()).unwrap())
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(events(&machines, 1, "mail").await.lines().count(), 1);
}
