//! examples/bookinfo: functions in four languages that call each other by name.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use nearpath_testkit::{eventually, need_root, program, skip, within};
use serde_json::{Value, json};

use crate::nodes::two_machines::fenced_blocks;
use crate::test_server::{TestResponse, TestServer, send_request};

const README: &str = include_str!("../../examples/bookinfo/README.md");
const EXAMPLE_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/bookinfo");
/// Address of the gateway in the page.
const PAGE_ADDRESS: &str = "127.0.0.1:8080";
const FUNCTIONS: [&str; 6] = [
    "productpage",
    "details",
    "reviews",
    "ratings",
    "ratings-redis",
    "ratings-store",
];
/// Enough to compile and deploy, beside other tests.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
const MAX_RUNS: u32 = 50;

/// Parts of the page: for one machine, and for two.
pub(crate) fn page_parts() -> (&'static str, &'static str) {
    README.split_once("## Two machines").unwrap()
}

/// Copies the example below a folder and builds it, so the repository stays as it is. An error
/// names the missing compiler.
pub(crate) fn build_example(folder: &Path) -> Result<(), String> {
    let examples = folder.join("examples");
    fs::create_dir_all(&examples).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(EXAMPLE_FOLDER).arg(&examples);
    assert!(copy.status().unwrap().success());
    let built = Command::new(examples.join("bookinfo/build")).output();
    let built = built.unwrap();
    match built.status.code() {
        Some(0) => Ok(()),
        // As of automake: the test cannot run here.
        Some(77) => Err(String::from_utf8_lossy(&built.stdout).trim().to_owned()),
        _ => panic!("{}", String::from_utf8_lossy(&built.stderr)),
    }
}

/// Runs commands of the page against a server.
async fn run_commands(server: &TestServer, folder: &Path, text: &str) -> Output {
    let programs = program("nearpath").parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap();
    let address = server.addr.to_string();
    let mut command = tokio::process::Command::new("bash");
    command
        // A reader's shell would go on after a failure; the test must not.
        .args(["-euc", &text.replace(PAGE_ADDRESS, &address)])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("OPENFAAS_URL", format!("http://{address}"));
    let output = tokio::time::timeout(COMMAND_TIMEOUT, command.output()).await;
    output.expect("the commands end").unwrap()
}

/// Runs commands until they print what the page shows: a removed function drains for a moment.
async fn run_until(server: &TestServer, folder: &Path, text: &str, expected: &str) {
    let mut shown = String::new();
    for _ in 0..MAX_RUNS {
        let output = run_commands(server, folder, text).await;
        shown = String::from_utf8(output.stdout).unwrap();
        if shown == expected {
            return;
        }
    }
    assert_eq!(shown, expected, "{text}");
}

#[tokio::test]
async fn the_page_for_one_machine_works_as_it_stands() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    if let Err(why) = build_example(folder.path()) {
        skip!("{why}");
    }
    let server = TestServer::start().await;
    let blocks: Vec<_> = fenced_blocks(page_parts().0).collect();
    let mut outputs = 0;
    for (at, &(kind, text)) in blocks.iter().enumerate() {
        match blocks.get(at + 1) {
            // Outputs are compared with the commands above them.
            _ if kind != "sh" => {}
            Some(&("text", expected)) => {
                run_until(&server, folder.path(), text, expected).await;
                outputs += 1;
            }
            _ => {
                let output = run_commands(&server, folder.path(), text).await;
                assert!(output.status.success(), "{text}: {output:?}");
            }
        }
    }
    // Otherwise a page without outputs would pass.
    assert!(outputs >= 5, "the page has changed");
    // The command with EPERM has run once.
    let denied = r#"nearpath_edge_connections_denied_total{caller="productpage.openfaas-fn",callee="ratings.openfaas-fn",reason="not_allowed"} 1"#;
    let metrics = server.read_metrics().await;
    assert!(metrics.contains(denied), "{metrics}");
}

async fn get_json(server: &TestServer, target: &str) -> Value {
    let request = Request::get(target)
        .header("host", "localhost")
        .header("accept", "application/json")
        .body(Default::default())
        .unwrap();
    let answer = within(send_request(server.addr, request)).await.unwrap();
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(answer.status(), StatusCode::OK, "{text}\n{}", server.log());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

async fn post(server: &TestServer, target: &str, form: &'static str) -> TestResponse {
    server.send_request(Method::POST, target, form).await
}

/// Stars of a book in the order of its reviews.
fn stars(page: &Value) -> Value {
    let reviews = page["reviews"].as_array().unwrap();
    reviews.iter().map(|one| one["stars"].clone()).collect()
}

async fn check_ratings(server: &TestServer) {
    let page = "/function/productpage?book=2";
    assert_eq!(stars(&get_json(server, page).await), json!([3, 5]));
    let posted = post(server, "/function/ratings/2", "reviewer=ann&stars=1").await;
    assert_eq!(posted.status(), StatusCode::OK);
    assert_eq!(stars(&get_json(server, page).await), json!([1, 5]));
    let kept = format!("{page}&ratings=ratings-redis");
    let posted = post(server, &kept, "reviewer=ben&stars=4").await;
    assert_eq!(posted.status(), StatusCode::SEE_OTHER);
    assert_eq!(stars(&get_json(server, &kept).await), json!([null, 4]));
    let html = server.send_request(Method::GET, &kept, "").await;
    let html = String::from_utf8_lossy(html.body()).into_owned();
    assert!(
        html.contains("Herman Melville") && html.contains("★★★★☆"),
        "{html}"
    );
}

async fn check_refusals(server: &TestServer) {
    for (query, form, part) in [
        ("", "reviewer=ann&stars=6", "invalid stars"),
        ("", "reviewer=cy&stars=5", "only a reviewer"),
        ("?ratings=x", "reviewer=ann&stars=5", "unknown ratings"),
    ] {
        let answer = post(server, &format!("/function/productpage{query}"), form).await;
        let text = String::from_utf8_lossy(answer.body());
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{text}");
        assert!(text.contains(part), "{text}");
    }
    for target in ["productpage?book=3", "details/3", "reviews/3", "ratings/3"] {
        let target = format!("/function/{target}");
        let answer = server.send_request(Method::GET, &target, "").await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{target}");
    }
}

/// The first call wakes all functions that it needs.
async fn check_wake(server: &TestServer) {
    for name in FUNCTIONS {
        server.scale(name, 0).await;
    }
    for name in FUNCTIONS {
        server.wait_available(name, 0).await;
    }
    let shown = get_json(server, "/function/productpage?ratings=ratings-redis").await;
    assert_eq!(shown["missing"], json!({}), "{}", server.log());
    assert_eq!(shown["details"]["author"], "Mary Shelley");
}

/// The page without the functions that it needs.
async fn check_missing_parts(server: &TestServer) {
    let page = "/function/productpage?ratings=ratings-redis";
    for name in ["ratings-store", "details"] {
        let body = json!({ "functionName": name }).to_string();
        let removed = server.send_request(Method::DELETE, "/system/functions", body);
        assert!(removed.await.status().is_success());
    }
    eventually("both functions are missing", async || {
        let shown = get_json(server, page).await;
        let missing: Vec<_> = shown["missing"].as_object().unwrap().keys().collect();
        missing == ["details", "ratings-redis"] && stars(&shown) == json!([null, null])
    })
    .await;
    let answer = post(server, page, "reviewer=ann&stars=5").await;
    let text = String::from_utf8_lossy(answer.body());
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY, "{text}");
    assert!(text.contains("ratings-store"), "{text}");
    let html = server.send_request(Method::GET, page, "").await;
    let html = String::from_utf8_lossy(html.body()).into_owned();
    assert!(
        html.contains("<code>details</code> is not available"),
        "{html}"
    );
}

#[tokio::test]
async fn ratings_are_kept_and_failures_are_named() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    if let Err(why) = build_example(folder.path()) {
        skip!("{why}");
    }
    let server = TestServer::start().await;
    let deploy = "nearpath deploy -f examples/bookinfo/stack.yml";
    let deployed = run_commands(&server, folder.path(), deploy).await;
    assert!(deployed.status.success(), "{deployed:?}");
    check_ratings(&server).await;
    check_refusals(&server).await;
    check_wake(&server).await;
    check_missing_parts(&server).await;
}
