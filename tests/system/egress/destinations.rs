//! Destinations that functions reach: declared ones, and no others.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

use http::Method;
use nearpath_testkit::{eventually, need_root};
use serde_json::json;

use super::{hello_code, is_reset_error, run_code, runner_function};
use crate::external_server::{ExternalServer, MACHINE_NAME, MACHINE_V4, on_own_machine, start_web};
use crate::test_server::{TestServer, need_forwarding};

#[tokio::test]
async fn what_is_declared_is_reached_and_nothing_else() {
    need_root!();
    on_own_machine();
    reaches_what_it_declared(&[]).await;
}

#[tokio::test]
async fn a_forwarder_lets_it_through_too() {
    need_forwarding!();
    on_own_machine();
    reaches_what_it_declared(&["--forward", "tc"]).await;
}

async fn reaches_what_it_declared(options: &[&str]) {
    let (own, at_machine, secret) = (
        ExternalServer::bind_at(Ipv4Addr::LOCALHOST),
        ExternalServer::bind_at(MACHINE_V4),
        ExternalServer::bind_at(MACHINE_V4),
    );
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), options).await;
    let egress = format!(
        "{MACHINE_NAME}:{} warm=0, {MACHINE_V4}:{} warm=0",
        own.port, at_machine.port
    );
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    server
        .deploy_ready(&runner_function(folder.path(), "stays", ""))
        .await;
    for _ in 0..2 {
        assert_eq!(
            run_code(&server, "goes", &hello_code(MACHINE_NAME, own.port)).await,
            "heard hello",
            "{}",
            server.log()
        );
        assert_eq!(
            run_code(&server, "goes", &hello_code(MACHINE_V4, at_machine.port)).await,
            "heard hello"
        );
    }
    let refused: BTreeSet<_> = ["ENETUNREACH", "ECONNREFUSED"].map(str::to_owned).into();
    let denied = async |function: &str, to: &str, port| {
        let reply = run_code(&server, function, &hello_code(to, port)).await;
        assert!(
            refused.contains(&reply) || is_reset_error(&reply),
            "{function} to {to}:{port}: {reply}"
        );
    };
    denied("goes", &MACHINE_V4.to_string(), secret.port).await; // another port
    // a port that another destination declares
    denied("goes", &MACHINE_V4.to_string(), own.port).await;
    denied("goes", "203.0.113.8", at_machine.port).await; // another machine
    denied("goes", "10.62.0.1", at_machine.port).await; // the gateway's address
    denied("goes", "127.0.0.1", own.port).await; // its own loopback
    denied("goes", &MACHINE_V4.to_string(), server.addr.port()).await; // the API
    denied("stays", &MACHINE_V4.to_string(), at_machine.port).await; // declared by another function
    denied("stays", "10.61.0.2", own.port).await; // stand-in of another function's name
    let unnamed = run_code(&server, "stays", &hello_code(MACHINE_NAME, own.port)).await;
    assert!(
        unnamed.contains("name"),
        "the resolver of the instance does not know it: {unnamed}"
    );
    assert_eq!(
        (
            secret.counts().opened,
            at_machine.counts().opened,
            own.counts().opened
        ),
        (0, 2, 2)
    );
}

#[tokio::test]
async fn another_egress_takes_effect_with_its_deployment() {
    need_root!();
    on_own_machine();
    let (first, second) = (
        ExternalServer::bind_at(MACHINE_V4),
        ExternalServer::bind_at(MACHINE_V4),
    );
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let declared = |outside: &ExternalServer| format!("{MACHINE_V4}:{}", outside.port);
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &declared(&first)))
        .await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "other",
            &format!("{},{}", declared(&first), declared(&second)),
        ))
        .await;
    let hears = async |function, outside: &ExternalServer| {
        run_code(&server, function, &hello_code(MACHINE_V4, outside.port)).await
    };
    assert_eq!(hears("goes", &first).await, "heard hello");
    assert!(
        is_reset_error(&hears("goes", &second).await),
        "its neighbour's listener is there, but not for it"
    );
    assert_eq!(hears("other", &second).await, "heard hello");
    let answer = server
        .send_request(
            Method::PUT,
            "/system/functions",
            runner_function(folder.path(), "goes", &declared(&second)).to_string(),
        )
        .await;
    assert!(answer.status().is_success());
    eventually("the new egress holds", async || {
        hears("goes", &second).await == "heard hello"
    })
    .await;
    eventually("the old one does not", async || {
        is_reset_error(&hears("goes", &first).await)
    })
    .await;
    assert_eq!(
        hears("other", &first).await,
        "heard hello",
        "a neighbour's stays"
    );
}

#[tokio::test]
async fn what_cannot_be_reached_is_reported_in_the_functions_log() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress =
        "127.0.0.1:5432, localhost:6379, 10.62.0.1:8080, 10.61.0.9:80, [::1]:443, [fe80::1]:443";
    server
        .deploy_ready(&runner_function(folder.path(), "lost", egress))
        .await;
    let log = server
        .send_request(Method::GET, "/system/logs?name=lost&follow=false", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    for report in [
        "127.0.0.1:5432",
        "host.nearpath.internal:5432",
        "localhost:6379",
        "10.62.0.1:8080",
        "10.61.0.9:80",
        "[::1]:443",
        "host.nearpath.internal:443",
        "[fe80::1]:443",
    ] {
        assert!(log.contains(report), "{report}: {log}");
    }
}

#[tokio::test]
async fn a_destination_at_the_gateways_port_does_not_replace_the_gateway() {
    need_root!();
    on_own_machine();
    let _outside = ExternalServer::serve_on(TcpListener::bind((MACHINE_V4, 8080)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&crate::test_server::echo_function(folder.path(), "echo"))
        .await;
    let mut spec = runner_function(folder.path(), "goes", &format!("{MACHINE_V4}:8080"));
    spec["annotations"]["nearpath.io/chain"] = json!("shop");
    spec["annotations"]["nearpath.io/calls"] = json!("echo");
    server.deploy_ready(&spec).await;
    assert_eq!(
        run_code(&server, "goes", &hello_code(MACHINE_V4, 8080)).await,
        "heard hello",
        "{}",
        server.log()
    );
    let call = "import urllib.request\nsaid = urllib.request.urlopen('http://10.62.0.1:8080/function/echo', data=b'inside').read().decode()";
    assert_eq!(run_code(&server, "goes", call).await, "inside");
}

#[tokio::test]
async fn the_guides_example_runs() {
    need_root!();
    on_own_machine();
    let port = start_web("to be or not to be");
    let server = TestServer::start().await;
    let stack = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/outside/stack.yml");
    let mut command = tokio::process::Command::new(nearpath_testkit::program("nearpath"));
    command
        .args(["deploy", "-f", stack])
        .env("OPENFAAS_URL", format!("http://{}", server.addr));
    command
        .env("QUOTES", format!("{MACHINE_NAME}:{port}"))
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let deployed = nearpath_testkit::within(command.output()).await.unwrap();
    assert!(
        deployed.status.success(),
        "{}",
        String::from_utf8_lossy(&deployed.stderr)
    );
    for _ in 0..3 {
        let answer = server
            .send_request(Method::GET, "/function/quotes", "")
            .await;
        assert_eq!(
            (answer.status().as_u16(), answer.body().as_ref()),
            (200, b"to be or not to be".as_ref()),
            "{}",
            server.log()
        );
    }
    let denied = server.call_function("quotes", "192.0.2.1:80").await;
    assert_eq!(denied.status(), 502);
    assert!(
        String::from_utf8_lossy(denied.body()).contains("unreachable"),
        "{:?}",
        denied.body()
    );
}
