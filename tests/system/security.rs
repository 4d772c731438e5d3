//! Forbidden actions of instances and web pages.

use http::{Request, StatusCode};
use nearpath_testkit::within;
use serde_json::json;

use crate::test_server::{TestServer, echo_function, http_function, script_function, send_request};

/// Calls another function through the gateway and forwards the response.
const RELAY_BODY: &str = r#"try:
    with urllib.request.urlopen("http://gateway:8080" + body.decode(), data=b"from inside") as reply:
        self.answer(reply.status, reply.read())
except urllib.error.HTTPError as error:
    self.answer(error.code, error.read())
except OSError as error:
    self.answer(599, str(error).encode())"#;

#[tokio::test]
async fn only_declared_edges_may_be_called() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "callee"))
        .await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "stranger"))
        .await;
    let mut caller = http_function(&server.data_dir, "caller", RELAY_BODY);
    caller["annotations"] = json!({ "nearpath.io/chain": "shop", "nearpath.io/calls": "callee" });
    server.deploy_ready(&caller).await;
    let allowed = server.call_function("caller", "/function/callee").await;
    assert_eq!(
        (allowed.status(), allowed.body().as_ref()),
        (StatusCode::OK, b"from inside".as_ref()),
        "{}",
        server.log()
    );
    let denied = server.call_function("caller", "/function/stranger").await;
    let text = String::from_utf8_lossy(denied.body()).into_owned();
    assert_eq!(denied.status(), StatusCode::FORBIDDEN, "{text}");
    assert!(
        text.contains("caller") && text.contains("stranger") && text.contains("chains"),
        "{text}"
    );
}

#[tokio::test]
async fn the_administrators_api_is_not_there_for_instances() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&http_function(&server.data_dir, "caller", RELAY_BODY))
        .await;
    let answer = server.call_function("caller", "/system/functions").await;
    assert!(
        answer.status().is_client_error(),
        "{}: {:?}",
        answer.status(),
        answer.body()
    );
}

/// The node takes the watchdog's word for the platform's, and both have the same user.
#[tokio::test]
async fn a_function_reaches_nothing_of_its_watchdog() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let look = "for file in mem environ maps fd/0; do
        (exec 3</proc/1/$file) 2>/dev/null && echo \"$file opens\"
    done
    exec 3</proc/self/maps && echo end\n";
    server
        .deploy_ready(&script_function(&server.data_dir, "look", look))
        .await;
    let answer = server.call_function("look", "").await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(text, "end\n", "{}", server.log());
}

#[tokio::test]
async fn an_instance_sees_its_secret_and_nothing_of_the_host() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let secret = json!({ "name": "key", "value": "s3cret" }).to_string();
    assert!(
        server
            .send_request(http::Method::POST, "/system/secrets", secret)
            .await
            .status()
            .is_success()
    );
    let look = format!(
        "cat /var/openfaas/secrets/key; echo; id -u; ls /root /home/app /sys {} 2>&1; ls -d /proc/[0-9]* | wc -l; touch /home/app/function/x 2>&1; true\n",
        server.data_dir.display() // nearpath.db is there
    );
    let mut spec = script_function(&server.data_dir, "look", &look);
    spec["secrets"] = json!(["key"]);
    server.deploy_ready(&spec).await;
    let reply = String::from_utf8_lossy(server.call_function("look", "").await.body()).into_owned();
    assert!(reply.starts_with("s3cret\n"), "{reply}");
    assert!(!reply.lines().any(|line| line == "0"), "not root: {reply}");
    assert!(!reply.contains("nearpath.db"), "{reply}");
    assert!(
        reply.contains("Read-only file system") || reply.contains("Permission denied"),
        "{reply}"
    );
}

#[tokio::test]
async fn a_web_page_of_another_site_cannot_deploy_where_there_is_no_password() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let own = server.addr.to_string();
    for (host, origin, reply) in [
        (
            "evil.example",
            "http://evil.example",
            "ask http://127.0.0.1",
        ),
        (&own, "http://evil.example", "a page of another web site"),
    ] {
        let request = Request::post("/system/functions")
            .header("host", host)
            .header("origin", origin);
        let order = echo_function(&server.data_dir, "echo").to_string();
        let request = request
            .header("content-type", "text/plain")
            .body(order.into())
            .unwrap();
        let answer = within(send_request(server.addr, request)).await.unwrap();
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        assert_eq!(
            answer.status(),
            StatusCode::FORBIDDEN,
            "{host} {origin}: {text}"
        );
        assert!(text.contains(reply), "{text}");
    }
    assert_eq!(
        server
            .send_request(http::Method::GET, "/system/functions", "")
            .await
            .body()
            .as_ref(),
        b"[]"
    );
}
