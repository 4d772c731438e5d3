//! The native shop, deployed from its stack file as by a user: a customer buys something, and
//! every call on the way goes through memory.

use std::path::Path;
use std::process::Stdio;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{copy_program, eventually, program, within};
use serde_json::{Value, json};

use crate::test_server::{TestResponse, TestServer, send_request};

const SHOP_PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/boutique/native/stack.yml"
);

/// The stack file beside the program, with services that call through memory or not at all.
fn stack_file(folder: &Path) -> std::path::PathBuf {
    std::fs::create_dir(folder.join("bin")).unwrap();
    copy_program(
        program("boutique-native"),
        folder.join("bin/boutique-native"),
    );
    let text = std::fs::read_to_string(SHOP_PATH).unwrap();
    let near = text.replace(
        "boutique-native --service",
        "boutique-native --shm-only --service",
    );
    assert_eq!(near.matches("--shm-only").count(), 10, "ten services");
    let path = folder.join("stack.yml");
    std::fs::write(&path, near).unwrap();
    path
}

async fn deploy_stack(server: &TestServer, stack: &Path) {
    let mut command = tokio::process::Command::new(program("nearpath"));
    command
        .arg("deploy")
        .arg("-f")
        .arg(stack)
        .env("OPENFAAS_URL", format!("http://{}", server.addr));
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = within(output).await.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

async fn post_request(
    server: &TestServer,
    method: Method,
    path: &str,
    accept: &str,
    body: &Value,
) -> TestResponse {
    let body = if body.is_null() {
        Bytes::new()
    } else {
        body.to_string().into()
    };
    let request = Request::builder()
        .method(method)
        .uri(format!("/function/frontend{path}"));
    let request = request
        .header("host", "localhost")
        .header("x-nearpath-path", "?")
        .header("accept", accept);
    let request = request
        .header("cookie", "shop_session-id=ann; shop_currency=EUR")
        .body(Full::new(body))
        .unwrap();
    within(send_request(server.addr, request)).await.unwrap()
}

async fn fetch_page(server: &TestServer, method: Method, path: &str, body: &Value) -> Value {
    let answer = post_request(server, method, path, "application/json", body).await;
    let text = String::from_utf8_lossy(answer.body());
    assert_eq!(
        (
            answer.status().as_u16(),
            &answer.headers()["x-nearpath-path"]
        ),
        (200, &"shm".parse().unwrap()),
        "{text}"
    );
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn a_purchase_uses_only_shared_memory() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start().await;
    deploy_stack(&server, &stack_file(folder.path())).await;
    eventually("every service knows its callees", async || {
        post_request(&server, Method::GET, "/", "text/html", &Value::Null)
            .await
            .status()
            == 200
    })
    .await;
    let front = post_request(&server, Method::GET, "/", "text/html", &Value::Null).await;
    let html = String::from_utf8_lossy(front.body()).into_owned();
    assert!(
        html.starts_with("<!doctype html>")
            && html.contains("Salt &amp; Pepper")
            && html.contains("EUR "),
        "{html}"
    );
    let front = fetch_page(&server, Method::GET, "/", &Value::Null).await;
    assert!(
        front["ads"].as_array().is_some_and(|ads| !ads.is_empty()),
        "the frontend hides a failed call of `ad`: {front}"
    );
    let cart = fetch_page(
        &server,
        Method::POST,
        "/cart?product_id=6E92ZMYYFZ&quantity=2",
        &Value::Null,
    )
    .await;
    assert_eq!(
        cart["items"],
        json!([{ "productId": "6E92ZMYYFZ", "quantity": 2 }])
    );
    let cart = fetch_page(&server, Method::GET, "/cart", &Value::Null).await;
    let form = json!({
        "email": "ann@example.com",
        "address": { "street": "1 Main Street", "city": "Ottawa", "zip": "K1A 0A1", "country": "Canada" },
        "card": { "number": "4111-1111-1111-1111", "year": 2099, "month": 1, "cvv": 123 },
    });
    let bought = fetch_page(&server, Method::POST, "/cart/checkout", &form).await;
    assert_eq!(
        bought["order"]["total"], cart["total"],
        "the cart's page showed what the order costs"
    );
    assert_eq!(
        bought["order"]["trackingId"].as_str().map(str::len),
        Some(18)
    );
    assert_eq!(
        fetch_page(&server, Method::GET, "/cart", &Value::Null).await["items"],
        json!([])
    );
}
