//! Calls by way of the gateway are counted for their edges, in one row with everything else.

use http::Method;
use nearpath_testkit::{eventually, need_root};
use serde_json::{Value, json};

use crate::shm::{metric_value, run_cli};
use crate::test_server::{TestServer, http_function};
use crate::virtual_addresses::{caller, run};

/// Fails where its path says so.
const RATINGS_BODY: &str = r#"self.answer(500 if self.path == "/fail" else 404 if self.path == "/none" else 200, b"five")"#;
const EDGE: &str = r#"caller="front.openfaas-fn",callee="ratings.openfaas-fn""#;

/// Returns the rows of the edge from `front` to `ratings`.
async fn rows(server: &TestServer) -> Vec<Value> {
    let edges = server.send_request(Method::GET, "/system/edges", "").await;
    let edges: Vec<Value> = serde_json::from_slice(edges.body()).unwrap();
    let is_meant = |row: &Value| {
        row["caller"] == "front.openfaas-fn" && row["callee"] == "ratings.openfaas-fn"
    };
    edges.into_iter().filter(is_meant).collect()
}

/// Waits until the edge has one row with this many ended calls.
async fn wait_for_row(server: &TestServer, requests: u64) -> Value {
    eventually("the calls are counted", async || {
        let rows = rows(server).await;
        rows.len() == 1 && rows[0]["requests"] == requests
    })
    .await;
    rows(server).await.remove(0)
}

async fn deploy_shop(server: &TestServer) {
    server
        .deploy_ready(&http_function(&server.data_dir, "ratings", RATINGS_BODY))
        .await;
    server
        .deploy_ready(&caller(server, "front", "stars=ratings"))
        .await;
}

#[tokio::test]
async fn calls_by_every_name_are_in_one_row() {
    need_root!();
    let server = TestServer::start().await;
    deploy_shop(&server).await;
    let program = "result = [get(url) for url in ('http://ratings/', 'http://stars:8080/x', \
         'http://gateway:8080/function/ratings', 'http://gateway:8080/function/stars/x')]";
    let answers = run(&server, "front", program).await;
    assert_eq!(answers, json!(["five", "five", "five", "five"]));
    let failed = run(&server, "front", "result = get('http://ratings/fail')").await;
    assert_eq!(failed, json!([500, null]));
    let none = run(&server, "front", "result = get('http://ratings/none')").await;
    assert_eq!(none, json!([404, null]));

    let row = wait_for_row(&server, 6).await;
    assert_eq!((&row["failed"], &row["inFlight"]), (&json!(1), &json!(0)));
    assert_eq!(row["chain"], "shop");
    assert!(row["seconds"].as_f64().unwrap() > 0.0, "{row}");
    // The connections of HTTP by name are there, too, and their bytes count once.
    assert_eq!(
        (&row["callBytes"], &row["answerBytes"]),
        (&json!(0), &json!(24))
    );
    assert_eq!(row["connectionBytes"], 0, "{row}");
    if row["connections"] != 0 {
        assert_eq!(row["connections"], 4, "{row}");
    }
    for (metric, value) in [
        ("nearpath_edge_requests_total", 6.0),
        ("nearpath_edge_failed_total", 1.0),
        ("nearpath_edge_in_flight", 0.0),
        ("nearpath_edge_duration_seconds_count", 6.0),
    ] {
        assert_eq!(metric_value(&server, metric, EDGE).await, value, "{metric}");
    }
    let shown = run_cli(&server, &["edges", "ratings"]);
    let shown = shown.as_array().unwrap().iter();
    assert_eq!(shown.filter(|row| row["requests"] == 6).count(), 1);
    // Rows of edges are no second source of a function's own counts.
    assert_eq!(server.describe("ratings").await["invocationCount"], 6.0);
}

async fn remove(server: &TestServer, name: &str) {
    let function = json!({ "functionName": name }).to_string();
    let removed = server.send_request(Method::DELETE, "/system/functions", function);
    assert!(removed.await.status().is_success());
}

/// Returns the text of an error, too.
const GET_ERROR: &str = r#"try:
    result = get('http://ratings/')
except urllib.error.HTTPError as error:
    result = error.read().decode()"#;

#[tokio::test]
async fn a_row_ends_with_its_function() {
    need_root!();
    let server = TestServer::start().await;
    deploy_shop(&server).await;
    run(&server, "front", "result = get('http://ratings/')").await;
    wait_for_row(&server, 1).await;
    let address = server.describe("ratings").await["virtualAddress"].clone();
    remove(&server, "ratings").await;
    eventually("calls are refused", async || {
        run(&server, "front", GET_ERROR).await != "five"
    })
    .await;
    let refusal = run(&server, "front", GET_ERROR).await;
    let wanted = format!(
        "ratings.openfaas-fn (virtual address {}) is not deployed; deploy it, or remove the edge from front.openfaas-fn",
        address.as_str().unwrap()
    );
    assert!(refusal.as_str().unwrap().contains(&wanted), "{refusal}");
    let is_counted = |row: &Value| row["requests"] != 0;
    assert!(!rows(&server).await.iter().any(is_counted));
    deploy_shop(&server).await;
    remove(&server, "front").await;
    eventually("the row is gone", async || rows(&server).await.is_empty()).await;
}
