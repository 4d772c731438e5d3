//! `deploy` and `rm`: their requests in order, and their results.

use serde_json::json;

use crate::fake_gateway::{CliRun, FakeGateway, FakeReply, RecordedRequest, function_status};

const STACK: &str = "provider:\n  gateway: http://127.0.0.1:1\nfunctions:\n  front:\n    handler: ./front\n    fprocess: cat\n    limits: {memory: 64Mi}\n  cart:\n    image: shop/cart:1\nchains:\n  shop: [front -> cart]\n";

fn folder(stack: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("front")).unwrap();
    std::fs::write(folder.path().join("stack.yml"), stack).unwrap();
    folder
}

/// PUT finds nothing, POST makes it, then it is ready.
fn fresh(request: &RecordedRequest, _: usize) -> FakeReply {
    let name = request
        .line
        .strip_prefix("GET /system/function/")
        .and_then(|rest| rest.split('?').next());
    match (request.line.as_str(), name) {
        ("PUT /system/functions", _) => {
            (404, "controller: no_function: there is no function".into())
        }
        (_, Some(name)) => (200, function_status(name, 1, 1, None)),
        _ => (202, json!({})),
    }
}

#[tokio::test]
async fn each_function_is_put_then_posted_then_waited_for() {
    let folder = folder(STACK);
    let fake = FakeGateway::start(fresh).await;
    let url = format!("http://{}", fake.addr);
    let run = CliRun::new(&["deploy", "--json"])
        .env("OPENFAAS_URL", &url)
        .current_dir(folder.path())
        .output()
        .await
        .expect(0);
    let ask = |name: &str| format!("GET /system/function/{name}?namespace=openfaas-fn&usage=1");
    let put = "PUT /system/functions".to_owned();
    let post = "POST /system/functions".to_owned();
    assert_eq!(
        fake.request_lines(),
        [
            put.clone(),
            post.clone(),
            put,
            post,
            ask("front"),
            ask("cart")
        ]
    );
    let image = format!(
        "file://{}",
        folder
            .path()
            .join("front")
            .canonicalize()
            .unwrap()
            .display()
    );
    let spec = fake.requests()[1].json();
    assert_eq!(spec["service"], "front");
    assert_eq!(spec["image"], image);
    assert_eq!(spec["envProcess"], "cat");
    assert_eq!(spec["limits"]["memory"], "64Mi");
    assert_eq!(
        spec["annotations"],
        json!({"nearpath.io/calls": "cart", "nearpath.io/chain": "shop"})
    );
    let row = json!({"name": "front", "namespace": "openfaas-fn", "outcome": "created", "ready": true, "url": format!("{url}/function/front")});
    assert_eq!(run.json()[0], row);
    assert_eq!(run.err, "", "--json is quiet");
}

#[tokio::test]
async fn progress_is_printed_line_by_line_without_a_terminal() {
    let folder = folder(STACK);
    let answer = |request: &RecordedRequest, before: usize| match request.line.as_str() {
        "PUT /system/functions" => (202, json!({})),
        _ => (200, function_status("cart", 1, u64::from(before > 2), None)),
    };
    let fake = FakeGateway::start(answer).await;
    let url = format!("http://{}", fake.addr);
    let run = CliRun::new(&["deploy", "--filter", "c*", "-g", &url])
        .current_dir(folder.path())
        .output()
        .await
        .expect(0);
    assert!(
        run.err.contains("cart: starting 0/1") && run.err.contains("cart: ready 1/1"),
        "{}",
        run.err
    );
    assert!(run.out.contains("cart  updated   ready 1/1"), "{}", run.out);
    assert!(!run.out.contains("front") && !run.err.contains('\x1b'));
}

#[tokio::test]
async fn a_function_that_crashes_at_start_fails_with_its_output() {
    let answer = |request: &RecordedRequest, _: usize| match request.line.starts_with("PUT") {
        true => (202, json!({})),
        false => (
            200,
            function_status("bad", 1, 0, Some("python3: can't open file 'x.py'")),
        ),
    };
    let fake = FakeGateway::start(answer).await;
    let run = fake
        .run(&["deploy", "bad", "--image", "x", "--json"])
        .await
        .expect(7);
    assert!(run.err.contains("can't open file"), "{}", run.err);
    assert_eq!(run.json()[0]["ready"], false);
    assert_eq!(run.json()[0]["error"], "python3: can't open file 'x.py'");
}

#[tokio::test]
async fn a_function_that_is_not_ready_in_time_is_reported() {
    let fake = FakeGateway::start(|request, _| {
        (
            200,
            if request.line.starts_with("PUT") {
                json!({})
            } else {
                function_status("f", 2, 1, None)
            },
        )
    })
    .await;
    let run = fake
        .run(&["deploy", "f", "--image", "x", "--timeout", "100ms"])
        .await
        .expect(7);
    assert!(
        run.err.contains("not ready after 100ms: starting 1/2"),
        "{}",
        run.err
    );
    fake.run(&["deploy", "f", "--image", "x", "--no-wait"])
        .await
        .expect(0);
}

#[tokio::test]
async fn options_become_a_spec() {
    let fake = FakeGateway::start(fresh).await;
    let args = [
        "deploy",
        "f.dev",
        "--image",
        "x",
        "--fprocess",
        "cat",
        "-e",
        "A=b=c",
        "-l",
        "k=v",
        "--annotation",
        "n=m",
        "--secret",
        "s",
        "--no-wait",
    ];
    fake.run(&args).await.expect(0);
    let wanted = json!({
        "service": "f", "namespace": "dev", "image": "x", "envProcess": "cat", "envVars": {"A": "b=c"}, "labels": {"k": "v"},
        "annotations": {"n": "m"}, "secrets": ["s"], "constraints": [], "readOnlyRootFilesystem": false
    });
    assert_eq!(fake.requests()[1].json(), wanted);
}

#[tokio::test]
async fn one_refused_function_does_not_stop_the_others() {
    let folder = folder(STACK);
    let answer = |request: &RecordedRequest, _: usize| match request.body.contains("\"front\"") {
        true => (400, "controller: bad_request: no such secret".into()),
        false => (202, json!({})),
    };
    let fake = FakeGateway::start(answer).await;
    let url = format!("http://{}", fake.addr);
    let run = CliRun::new(&["deploy", "--no-wait", "-g", &url])
        .current_dir(folder.path())
        .output()
        .await
        .expect(1);
    assert!(
        run.err.contains("cannot deploy front")
            && run
                .err
                .contains("400: controller: bad_request: no such secret"),
        "{}",
        run.err
    );
    assert!(run.out.contains("cart   updated   accepted"), "{}", run.out);
}

#[tokio::test]
async fn a_missing_secret_is_reported_with_the_command_that_creates_it() {
    let answer = |request: &RecordedRequest, _: usize| match request.line.as_str() {
        "GET /system/secrets?namespace=openfaas-fn" => {
            (200, json!([{"name": "there", "namespace": "openfaas-fn"}]))
        }
        _ => (400, "controller: bad_request: no such secret".into()),
    };
    let fake = FakeGateway::start(answer).await;
    let run = fake
        .run(&[
            "deploy", "f", "--image", "x", "--secret", "there", "--secret", "key",
        ])
        .await
        .expect(1);
    let body = r#"{"name":"key","namespace":"openfaas-fn","value":"VALUE"}"#;
    let wanted = format!(
        "missing secret key: create it with curl -d '{body}' http://{}/system/secrets",
        fake.addr
    );
    assert!(
        run.err.contains(&wanted) && !run.err.contains("secret there"),
        "{}",
        run.err
    );
}

#[tokio::test]
async fn a_missing_file_names_its_option() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| CliRun::new(args).current_dir(folder.path()).output();
    let named = run(&["deploy", "-f", "no.yml"]).await.expect(6);
    assert!(
        named
            .err
            .contains("cannot read the stack file no.yml (-f): No such file"),
        "{}",
        named.err
    );
    assert!(
        run(&["deploy"])
            .await
            .expect(2)
            .err
            .contains("set a file with -f")
    );
}

#[tokio::test]
async fn an_invalid_file_is_reported_with_positions_and_nothing_is_sent() {
    let folder = folder("functions:\n  Front: {image: x}\n  cart: {imag: x}\n");
    let fake = FakeGateway::start(fresh).await;
    let url = format!("http://{}", fake.addr);
    let run = CliRun::new(&["deploy", "-g", &url])
        .current_dir(folder.path())
        .output()
        .await
        .expect(6);
    for wanted in [
        "stack.yml:2:3: error: invalid function name \"Front\"",
        "stack.yml:3:3: error:",
        "stack.yml:3:10: warning: unknown key `imag`",
    ] {
        assert!(run.err.contains(wanted), "{wanted}\n{}", run.err);
    }
    assert_eq!(fake.request_lines(), Vec::<String>::new());
}

#[tokio::test]
async fn the_gateway_is_chosen_by_option_then_variable_then_file() {
    let folder = folder(STACK);
    let by_file = CliRun::new(&["deploy"])
        .current_dir(folder.path())
        .output()
        .await
        .expect(3);
    assert!(
        by_file.err.contains("http://127.0.0.1:1:"),
        "{}",
        by_file.err
    );
    let fake = FakeGateway::start(fresh).await;
    let url = format!("http://{}", fake.addr);
    let run = |args: &'static [&'static str]| {
        CliRun::new(args)
            .env("OPENFAAS_URL", &url)
            .current_dir(folder.path())
    };
    run(&["deploy", "--no-wait"]).output().await.expect(0);
    run(&["deploy", "--no-wait", "--gateway", "http://127.0.0.1:2"])
        .output()
        .await
        .expect(3);
}

#[tokio::test]
async fn rm_removes_existing_functions_and_reports_missing_ones() {
    let answer = |request: &RecordedRequest, _: usize| {
        if request.body.contains("gone") {
            (404, "no".into())
        } else {
            (200, json!({}))
        }
    };
    let fake = FakeGateway::start(answer).await;
    let run = fake
        .run(&["rm", "gone", "cart.dev", "--json"])
        .await
        .expect(4);
    assert_eq!(
        fake.request_lines(),
        ["DELETE /system/functions", "DELETE /system/functions"]
    );
    assert_eq!(
        fake.requests()[1].json(),
        json!({"functionName": "cart", "namespace": "dev"})
    );
    assert_eq!(
        run.json()[1],
        json!({"name": "cart", "namespace": "dev", "removed": true})
    );
    assert_eq!(run.json()[0]["removed"], false);
    assert!(
        run.err.contains("there is no function gone.openfaas-fn"),
        "{}",
        run.err
    );
}

#[tokio::test]
async fn rm_of_a_file_needs_no_folders() {
    let folder = folder(STACK);
    std::fs::remove_dir(folder.path().join("front")).unwrap();
    let fake = FakeGateway::start(|_, _| (200, json!({}))).await;
    let file = folder.path().join("stack.yml");
    let run = fake
        .run(&["rm", "-f", file.to_str().unwrap()])
        .await
        .expect(0);
    assert_eq!(run.out, "front: removed\ncart: removed\n");
}
