//! Calls of instances, counted for their edges.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use nearpath_testkit::{eventually, within};
use nearpath_types::chain_status::EdgeStatus;
use nearpath_types::{
    FunctionPolicy, FunctionRoute, FunctionServer, InstanceState, RoutingSnapshot,
};

use crate::fixture::{
    self, CollectedResponse, SharedNetwork, TestGateway, collect_response, connect_http2,
    full_body, send_and_collect, send_request, start_blocked_instance, start_instance,
    start_mirror,
};
use crate::streams::body_channel;

/// Where each caller of a test connects from.
const FRONT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

fn front(callees: &[&str]) -> FunctionRoute {
    let policy = FunctionPolicy {
        calls: callees.iter().map(|name| name.parse().unwrap()).collect(),
        aliases: vec![("basket".parse().unwrap(), "cart".parse().unwrap())],
        chain: Some("shop".into()),
        ..FunctionPolicy::default()
    };
    FunctionRoute {
        instances: vec![fixture::instance_entry(FRONT, InstanceState::Starting)],
        ..fixture::function_route("front", policy, &[])
    }
}

fn cart(instance: SocketAddr) -> FunctionRoute {
    fixture::function_route("cart", FunctionPolicy::default(), &[instance])
}

fn publish(gateway: &TestGateway, functions: Vec<FunctionRoute>) {
    gateway.gateway.publish(&RoutingSnapshot {
        version: 1,
        nodes: Default::default(),
        functions: functions.into_iter().collect(),
    });
}

/// Starts a gateway where `front` may call `cart`.
fn start_shop(instance: SocketAddr) -> TestGateway {
    let gateway = TestGateway::start();
    publish(&gateway, vec![front(&["cart"]), cart(instance)]);
    gateway
}

async fn post(gateway: &TestGateway, path: &str) -> CollectedResponse {
    let request = Request::post(path).body(full_body("12345")).unwrap();
    send_and_collect(gateway.internal, request).await
}

fn rows(gateway: &TestGateway) -> Vec<EdgeStatus> {
    gateway.gateway.functions().edge_calls()
}

/// Waits until the only row has this many ended calls.
async fn wait_for_row(gateway: &TestGateway, requests: u64) -> EdgeStatus {
    eventually(
        "they are counted",
        async || matches!(&rows(gateway)[..], [row] if row.requests == requests),
    )
    .await;
    rows(gateway).remove(0)
}

/// Starts an instance that answers with the status in the path.
async fn start_status_instance() -> SocketAddr {
    start_instance(async |request: Request<Incoming>| {
        let status = request.uri().path()[1..].parse::<u16>().unwrap();
        request.into_body().collect().await.unwrap();
        Response::builder()
            .status(status)
            .body(full_body(""))
            .unwrap()
    })
    .await
}

#[tokio::test]
async fn a_call_has_a_row_with_its_chain_bytes_and_time() {
    let gateway = start_shop(start_mirror().await);
    assert!(rows(&gateway).is_empty());
    let answers = [
        post(&gateway, "/function/cart").await,
        post(&gateway, "/function/basket").await,
    ];
    let answered: usize = answers.iter().map(|answer| answer.body.len()).sum();
    let row = wait_for_row(&gateway, 2).await;
    assert_eq!(
        (&*row.chain, &*row.namespace, &*row.caller, &*row.callee),
        (
            "shop",
            "openfaas-fn",
            "front.openfaas-fn",
            "cart.openfaas-fn"
        )
    );
    assert_eq!((row.failed, row.in_flight), (0, 0));
    assert_eq!((row.call_bytes, row.answer_bytes), (10, answered as u64));
    assert!(row.seconds > 0.0, "{row:?}");
    let measured: u64 = row.latency.iter().map(|bucket| bucket.count).sum();
    assert_eq!(measured, 2);
}

#[tokio::test]
async fn calls_that_the_event_loop_serves_count_the_same() {
    let gateway = TestGateway::start();
    let mut callee = cart(start_instance(async |_| Response::new(full_body("watchdog"))).await);
    let server = FunctionServer {
        addr: start_mirror().await,
        base_path: String::new(),
        exec_timeout: None,
        network: Arc::new(SharedNetwork),
    };
    callee.instances[0].server = Some(server.into());
    publish(&gateway, vec![front(&["cart"]), callee]);
    let (mut calls, mut bytes) = (0, 0);
    // Each thread has connections of its own to the server, which the first calls open.
    eventually("calls take no task", async || {
        let answer = post(&gateway, "/function/cart").await;
        assert!(answer.body.starts_with("POST /\n"), "{answer:?}");
        (calls, bytes) = (calls + 1, bytes + answer.body.len() as u64);
        let metrics = gateway.encode_metrics();
        !metrics.contains("\nnearpath_inline_calls_total 0\n")
    })
    .await;
    let row = wait_for_row(&gateway, calls).await;
    assert_eq!((row.failed, row.in_flight), (0, 0));
    assert_eq!((row.call_bytes, row.answer_bytes), (5 * calls, bytes));
}

#[tokio::test]
async fn only_faults_of_the_callee_fail() {
    let gateway = start_shop(start_status_instance().await);
    for status in [200, 404, 500, 503] {
        assert_eq!(
            post(&gateway, &format!("/function/cart/{status}"))
                .await
                .status,
            status
        );
    }
    assert_eq!(wait_for_row(&gateway, 4).await.failed, 2);
}

#[tokio::test]
async fn calls_without_an_edge_have_no_row() {
    let gateway = start_shop(start_status_instance().await);
    assert_eq!(gateway.send_get("/function/cart/200").await.status, 200);
    assert_eq!(post(&gateway, "/function/front").await.status, 403);
    eventually("both are recorded", async || {
        gateway.log.parse_lines().len() == 2
    })
    .await;
    assert!(rows(&gateway).is_empty(), "{:?}", rows(&gateway));
}

#[tokio::test]
async fn a_caller_that_leaves_had_no_response() {
    let instance = start_blocked_instance().await;
    let gateway = start_shop(instance.addr);
    let request = Request::get("/function/cart").body(full_body("")).unwrap();
    let call = tokio::spawn(send_request(gateway.internal, request));
    instance.wait_for_requests(1).await;
    let row = rows(&gateway).remove(0);
    assert_eq!((row.requests, row.in_flight), (0, 1));
    call.abort();
    let row = wait_for_row(&gateway, 1).await;
    assert_eq!((row.failed, row.in_flight), (1, 0));
}

/// Starts an instance that answers gRPC with the status in the path: in trailers, or in the head alone.
async fn start_grpc_instance() -> SocketAddr {
    start_instance(async |request: Request<Incoming>| {
        let (place, status) = request.uri().path()[1..].split_once('/').unwrap();
        let status: http::HeaderValue = status.parse().unwrap();
        let response = Response::builder().header("content-type", "application/grpc");
        if place == "head" {
            return response
                .header("grpc-status", status)
                .body(full_body(""))
                .unwrap();
        }
        let (frames, body) = body_channel();
        let trailers = http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), status)]);
        frames.send(Frame::data("message".into())).unwrap();
        frames.send(Frame::trailers(trailers)).unwrap();
        response.body(body).unwrap()
    })
    .await
}

#[tokio::test]
async fn a_grpc_call_fails_by_its_status() {
    let gateway = start_shop(start_grpc_instance().await);
    let mut client = connect_http2(gateway.internal).await;
    for (calls, (answer, failed)) in (1..).zip([
        ("trailers/0", 0),
        ("trailers/5", 0), // NOT_FOUND, as 404 is
        ("trailers/13", 1),
        ("head/3", 1),
        ("head/14", 2),
    ]) {
        let request = Request::post(format!("http://gateway/function/cart/{answer}"))
            .header("content-type", "application/grpc");
        let sent = client.send_request(request.body(full_body("")).unwrap());
        let response = collect_response(within(sent).await.unwrap()).await;
        assert_eq!(response.status, 200, "{answer}");
        assert_eq!(
            wait_for_row(&gateway, calls).await.failed,
            failed,
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_row_lives_as_long_as_its_edge_and_both_functions() {
    let instance = start_status_instance().await;
    let gateway = start_shop(instance);
    post(&gateway, "/function/cart/200").await;
    wait_for_row(&gateway, 1).await;
    // A further edge changes nothing of this one.
    publish(&gateway, vec![front(&["mail", "cart"]), cart(instance)]);
    post(&gateway, "/function/cart/200").await;
    wait_for_row(&gateway, 2).await;
    publish(&gateway, vec![front(&["mail", "cart"])]);
    assert!(rows(&gateway).is_empty(), "the callee is gone");
    publish(&gateway, vec![front(&["mail"]), cart(instance)]);
    assert!(rows(&gateway).is_empty(), "the edge is gone");
    publish(&gateway, vec![cart(instance)]);
    publish(&gateway, vec![front(&["cart"]), cart(instance)]);
    post(&gateway, "/function/cart/200").await;
    wait_for_row(&gateway, 1).await;
}
