//! Commands that show or change one thing: their requests and outputs.

use serde_json::{Value, json};

use crate::fake_gateway::{CliRun, FakeGateway, RecordedRequest, function_status};

#[tokio::test]
async fn ls_prints_a_table_or_the_statuses() {
    let list = || {
        Value::from(vec![
            function_status("web", 2, 1, Some("exit 1")),
            function_status("cart", 1, 1, None),
            function_status("idle", 0, 0, None),
        ])
    };
    let fake = FakeGateway::start(move |_, _| (200, list())).await;
    let table = "NAME  READY           INVOCATIONS  IMAGE\ncart  1/1                       7  file:///srv/x\nidle  scaled to zero            7  file:///srv/x\nweb   1/2 failing               7  file:///srv/x\n";
    assert_eq!(fake.run(&["ls"]).await.expect(0).out, table);
    let json = fake
        .run(&["ls", "--json", "-n", "dev"])
        .await
        .expect(0)
        .json();
    assert_eq!(json[0]["name"], "cart");
    assert_eq!(json[2]["availableReplicas"], 1);
    assert_eq!(
        fake.request_lines()[1],
        "GET /system/functions?namespace=dev"
    );
}

#[tokio::test]
async fn pool_shows_a_snapshot_or_rates() {
    let one = |hits: usize| {
        json!({"owner": "cart.dev", "namespace": "dev", "destination": "db:5432", "protocol": "postgres", "max": 20, "openInGroup": 12,
            "open": 3, "warm": 1, "connecting": 0, "waiting": 2, "hits": hits, "misses": 4, "waits": 0, "refused": 0, "failed": 0,
            "stale": 0, "resets": 6, "sentBytes": 1024, "receivedBytes": 1024, "pins": {"LISTEN": 1}, "oldestSeconds": 2.5})
    };
    let fake = FakeGateway::start(move |_, before| (200, json!([one(before * 1_000)]))).await;
    let table = fake.run(&["pool", "ls", "cart.dev"]).await.expect(0).out;
    assert!(
        table.contains("cart.dev  db:5432      postgres     3     1  12/20        2")
            && table.contains("LISTEN 1"),
        "{table}"
    );
    assert_eq!(
        fake.run(&["pool", "ls", "-n", "dev", "--json"])
            .await
            .expect(0)
            .json()[0]["pins"]["LISTEN"],
        1
    );
    assert_eq!(fake.request_lines(), ["GET /system/pool?namespace=dev"; 2]);
    assert!(
        fake.run(&["pool", "ls", "mail.dev"])
            .await
            .expect(4)
            .err
            .contains("mail.dev")
    );
    let top = fake
        .run(&[
            "pool",
            "top",
            "-n",
            "dev",
            "--count",
            "1",
            "--interval",
            "100ms",
        ])
        .await
        .expect(0)
        .out;
    assert!(
        top.starts_with("OWNER") && top.lines().count() == 2 && !top.contains('\x1b'),
        "a file gets no colours: {top}"
    );
}

#[tokio::test]
async fn describe_shows_instances_and_failures() {
    let fake = FakeGateway::start(|_, _| (200, function_status("web", 2, 1, Some("exit 1")))).await;
    let page = fake.run(&["describe", "web"]).await.expect(0).out;
    for wanted in [
        "Name:        web",
        "State:       failing 1/2: exit 1",
        "Address:     10.60.0.7",
        "Calls:       cart",
        "memory 128Mi",
        "14.5 ms (handler 10.0, spawn 1.2)",
    ] {
        assert!(page.contains(wanted), "{wanted}\n{page}");
    }
    let json = fake
        .run(&["describe", "web", "--json"])
        .await
        .expect(0)
        .json();
    assert_eq!(json["instances"][0]["startMs"]["spawn"], 1.25);
    assert_eq!(json["notReadyReason"], "exit 1");
    assert_eq!(json["virtualAddress"], "10.60.0.7");
    let none = FakeGateway::start(|_, _| (404, "".into())).await;
    assert!(
        none.run(&["describe", "web"])
            .await
            .expect(4)
            .err
            .contains("no function web.openfaas-fn")
    );
}

#[tokio::test]
async fn logs_pass_every_option_to_the_gateway() {
    let line = json!({"name": "web", "namespace": "openfaas-fn", "instance": "i1", "timestamp": "2026-01-31T08:09:10Z", "text": "hello"});
    let fake = FakeGateway::start(move |_, _| (200, format!("{line}\n{line}\n").into())).await;
    let plain = fake
        .run(&["logs", "web", "--tail", "2"])
        .await
        .expect(0)
        .out;
    assert_eq!(plain, "2026-01-31T08:09:10Z i1 hello\n".repeat(2));
    assert_eq!(
        fake.request_lines()[0],
        "GET /system/logs?name=web&namespace=openfaas-fn&follow=false&tail=2"
    );
    let json = fake
        .run(&[
            "logs",
            "web.dev",
            "-f",
            "--since",
            "5m",
            "--instance",
            "i1",
            "--json",
        ])
        .await
        .expect(0)
        .out;
    assert_eq!(json.lines().count(), 2);
    let request = &fake.request_lines()[1];
    assert!(
        request.starts_with("GET /system/logs?name=web&namespace=dev&follow=true&since=20")
            && request.ends_with("&instance=i1"),
        "{request}"
    );
}

#[tokio::test]
async fn scale_sends_a_request_and_can_wait() {
    let fake = FakeGateway::start(|request, before| match request.line.starts_with("POST") {
        true => (202, json!({})),
        false => (
            200,
            function_status("web", 3, if before > 1 { 3 } else { 0 }, None),
        ),
    })
    .await;
    let run = fake
        .run(&["scale", "web", "3", "--wait", "--json"])
        .await
        .expect(0);
    assert_eq!(
        fake.request_lines()[0],
        "POST /system/scale-function/web?namespace=openfaas-fn"
    );
    assert_eq!(
        fake.requests()[0].json(),
        json!({"serviceName": "web", "namespace": "openfaas-fn", "replicas": 3})
    );
    assert_eq!(
        run.json(),
        json!({"name": "web", "namespace": "openfaas-fn", "replicas": 3, "availableReplicas": 3})
    );
}

#[tokio::test]
async fn scale_warns_when_the_gateway_reduces_the_number() {
    let answer = |request: &RecordedRequest, _| match request.line.starts_with("POST") {
        true => (202, json!({})),
        false => (200, function_status("web", 20, 20, None)),
    };
    let fake = FakeGateway::start(answer).await;
    let run = fake.run(&["scale", "web", "100000000"]).await.expect(0);
    assert_eq!(run.out, "web: 20 of 20 ready\n");
    assert!(
        run.err
            .contains("warning: web.openfaas-fn: 100000000 replicas were requested"),
        "{}",
        run.err
    );
    let woken = fake
        .run(&["scale", "web", "0", "--wait", "--json"])
        .await
        .expect(0);
    assert_eq!(woken.json()["replicas"], 20);
    assert!(
        woken.err.contains("a call has scaled it up again"),
        "{}",
        woken.err
    );
}

#[tokio::test]
async fn version_works_with_and_without_a_gateway() {
    let info = json!({"provider": {"provider": "nearpath", "version": {"release": "0.1.0"}, "orchestration": "nearpath"}, "version": {"release": "0.1.0"}, "arch": "x86_64"});
    let fake = FakeGateway::start(move |_, _| (200, info.clone())).await;
    assert!(
        fake.run(&["version"])
            .await
            .expect(0)
            .out
            .contains("server  nearpath 0.1.0 at http://127.0.0.1")
    );
    let json = fake.run(&["version", "--json"]).await.expect(0).json();
    assert_eq!(json["server"]["provider"]["provider"], "nearpath");
    let alone = CliRun::new(&["version", "--json", "-g", "http://127.0.0.1:1"])
        .output()
        .await
        .expect(0)
        .json();
    assert_eq!(alone["server"], Value::Null);
    assert_eq!(alone["client"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn credentials_come_from_option_variable_or_the_data_directory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("basic-auth-user"), "root\n").unwrap();
    std::fs::write(folder.path().join("basic-auth-password"), "local\n").unwrap();
    let data_dir = folder.path().to_str().unwrap();
    let password_file = folder.path().join("typed");
    std::fs::write(&password_file, "typed").unwrap();
    let fake = FakeGateway::start(|_, _| (200, json!([]))).await;
    let url = format!("http://{}", fake.addr);
    let run = |args: &[&str]| {
        CliRun::new(args)
            .env("OPENFAAS_URL", &url)
            .env("NEARPATH_DATA_DIR", data_dir)
    };
    run(&["ls"]).output().await.expect(0);
    run(&["ls"])
        .env("NEARPATH_PASSWORD", "variable")
        .output()
        .await
        .expect(0);
    run(&[
        "ls",
        "--username",
        "me",
        "--password-file",
        password_file.to_str().unwrap(),
    ])
    .env("NEARPATH_PASSWORD", "no")
    .output()
    .await
    .expect(0);
    fake.run(&["ls"]).await.expect(0);
    let sent: Vec<_> = fake
        .requests()
        .iter()
        .map(|request| {
            request
                .headers
                .get("authorization")
                .map(|h| h.to_str().unwrap().to_owned())
        })
        .collect();
    let basic = |base64: &str| Some(format!("Basic {base64}"));
    let wanted = [
        basic("cm9vdDpsb2NhbA=="),
        basic("YWRtaW46dmFyaWFibGU="),
        basic("bWU6dHlwZWQ="),
        None,
    ];
    assert_eq!(sent, wanted);
}
