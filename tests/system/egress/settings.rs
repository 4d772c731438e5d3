//! Settings of destinations: limits, protocols and secrets.

use http::Method;
use nearpath_testkit::{eventually, need_root, skip};
use serde_json::json;

use super::{hello_code, is_reset_error, run_code, runner_function};
use crate::external_server::{ExternalServer, MACHINE_NAME, MACHINE_V4, TestRedis, on_own_machine};
use crate::test_server::TestServer;

#[tokio::test]
async fn secrets_of_destinations_stay_with_the_node() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let mut spec = runner_function(
        folder.path(),
        "keeps",
        &format!("{MACHINE_NAME}:5432 user=shop password=secret:door"),
    );
    let refused = server
        .send_request(Method::POST, "/system/functions", spec.to_string())
        .await;
    assert!(
        refused.status().is_client_error()
            && String::from_utf8_lossy(refused.body()).contains("door"),
        "{refused:?}"
    );
    for (name, value) in [("door", "open sesame"), ("own", "mine")] {
        let secret = json!({ "name": name, "value": value }).to_string();
        assert!(
            server
                .send_request(Method::POST, "/system/secrets", secret)
                .await
                .status()
                .is_success()
        );
    }
    spec["secrets"] = json!(["own"]);
    server.deploy_ready(&spec).await;
    let seen = run_code(
        &server,
        "keeps",
        "said = sorted(os.listdir('/var/openfaas/secrets'))",
    )
    .await;
    assert_eq!(seen, "['own']");
    let used = server
        .send_request(
            Method::DELETE,
            "/system/secrets",
            json!({ "name": "door" }).to_string(),
        )
        .await;
    assert!(used.status().is_client_error(), "it is in use: {used:?}");
}

#[tokio::test]
async fn a_protocol_that_is_known_has_its_connections_used_again_and_the_password_stays_with_the_node()
 {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = TestRedis::start(folder.path(), "sesame").await else {
        skip!("needs redis-server")
    };
    let server = TestServer::start_in(folder.path(), &[]).await;
    let secret = json!({ "name": "door", "value": "sesame" }).to_string();
    assert!(
        server
            .send_request(Method::POST, "/system/secrets", secret)
            .await
            .status()
            .is_success()
    );
    let egress = format!(
        "{MACHINE_V4}:{} protocol=redis password=secret:door max=2",
        redis.port
    );
    server
        .deploy_ready(&runner_function(folder.path(), "counts", &egress))
        .await;
    let count = format!(
        "s = socket.create_connection(('{MACHINE_V4}', {}), 20)\ns.sendall(b'*2\\r\\n$4\\r\\nINCR\\r\\n$1\\r\\nn\\r\\n')\nsaid = s.recv(99).decode().strip()\ns.close()",
        redis.port
    );
    let before: u32 = redis
        .read_info("total_connections_received")
        .unwrap()
        .parse()
        .unwrap();
    for number in 1..=20 {
        assert_eq!(
            run_code(&server, "counts", &count).await,
            format!(":{number}"),
            "{}",
            server.log()
        );
    }
    let after: u32 = redis
        .read_info("total_connections_received")
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        after - before <= 4,
        "twenty clients, a few connections: {}",
        after - before
    );
}

/// All connections of a namespace to a destination count together. Each function stops at its own
/// `max`, and the log reports another function's limit.
#[tokio::test]
async fn functions_with_different_ceilings_stop_at_their_own() {
    need_root!();
    on_own_machine();
    let outside = ExternalServer::bind_at(MACHINE_V4);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress = |max| format!("{MACHINE_V4}:{} max={max} warm=0 wait=1s", outside.port);
    server
        .deploy_ready(&runner_function(folder.path(), "wide", &egress(4)))
        .await;
    server
        .deploy_ready(&runner_function(folder.path(), "narrow", &egress(2)))
        .await;
    let keep = |count| {
        format!(
            "import builtins\nbuiltins.kept = [socket.create_connection(('{MACHINE_V4}', {}), 20) for _ in range({count})]\n\
             for s in builtins.kept: s.sendall(b'hello\\n')\nsaid = [s.recv(99).decode().strip() for s in builtins.kept]",
            outside.port
        )
    };
    assert_eq!(
        run_code(&server, "wide", &keep(2)).await,
        "['heard hello', 'heard hello']",
        "{}",
        server.log()
    );
    let one = hello_code(MACHINE_V4, outside.port);
    let reply = run_code(&server, "narrow", &one).await;
    assert!(
        is_reset_error(&reply),
        "two are open, whosever they are: {reply}"
    );
    assert_eq!(
        run_code(&server, "wide", &one).await,
        "heard hello",
        "which has room for two more"
    );
    let freed = "import builtins\nfor s in builtins.kept: s.close()\nsaid = 'closed'";
    assert_eq!(run_code(&server, "wide", freed).await, "closed");
    eventually("there is room for both", async || {
        run_code(&server, "narrow", &one).await == "heard hello"
    })
    .await;
    assert!(outside.counts().max_open <= 4, "{:?}", outside.counts());
    let log = server
        .send_request(Method::GET, "/system/logs?name=narrow&follow=false", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    assert!(
        log.contains("max=2") && log.contains("max=4") && log.contains("wide.openfaas-fn"),
        "it is told: {log}"
    );
}

#[tokio::test]
async fn a_ceiling_holds_over_all_replicas_and_everybody_is_served() {
    need_root!();
    on_own_machine();
    let outside = ExternalServer::bind_at(MACHINE_V4);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_V4}:{} max=4 warm=2 wait=30s", outside.port),
        ))
        .await;
    server.scale("goes", 2).await;
    server.wait_available("goes", 2).await;
    // A bound socket is proxied by the node, which learns of the server's close before the next
    // connection.
    let code = format!(
        "s = socket.socket()\ns.bind(('', 0))\ns.connect(('{MACHINE_V4}', {}))\ns.sendall(b'hello\\n')\nsaid = s.recv(99).decode().strip()\ns.shutdown(socket.SHUT_WR)\n\
         while s.recv(99): pass\ns.close()",
        outside.port
    );
    let calls =
        futures_util::future::join_all((0..60).map(|_| run_code(&server, "goes", &code))).await;
    assert!(
        calls.iter().all(|reply| reply == "heard hello"),
        "{calls:?}"
    );
    let seen = outside.counts();
    assert!(
        seen.opened >= 60 && seen.broken == 0 && seen.max_open <= 4,
        "{seen:?}"
    );
}
