//! Functions: deployment, description, scaling, and invalid bodies.

use std::time::Duration;

use nearpath_types::{
    Eip, InstanceAddr, InstanceId, InstanceState, ObservedFunction, ObservedInstance, Revision,
    StartPhase,
};
use serde_json::json;

use crate::fixture::{ControllerFixture, spec_json};

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn a_function_is_deployed_described_scaled_and_removed() {
    let fixture = ControllerFixture::new().await;
    fixture
        .expect_status(404, "PUT", "/system/functions", &spec_json("echo", ""))
        .await; // faas-cli tries PUT first and POSTs on 404
    fixture
        .expect_status(
            202,
            "POST",
            "/system/functions",
            &spec_json("echo", r#","labels":{},"annotations":{}"#),
        )
        .await;
    fixture
        .expect_status(200, "PUT", "/system/functions", &spec_json("echo", ""))
        .await;
    fixture
        .expect_status(202, "POST", "/system/functions", &spec_json("echo", ""))
        .await;
    assert_eq!(
        fixture.fleet.desired_function("echo").unwrap().revision,
        Revision(3)
    );

    for path in [
        "/system/function/echo?usage=1",
        "/system/function/echo.openfaas-fn",
        "/system/function/echo?namespace=openfaas-fn",
    ] {
        assert_eq!(
            fixture.expect_status(200, "GET", path, "").await.json()["name"],
            "echo"
        );
    }
    fixture
        .expect_status(
            400,
            "GET",
            "/system/function/echo.dev?namespace=openfaas-fn",
            "",
        )
        .await;
    fixture
        .expect_status(404, "GET", "/system/function/echo?namespace=dev", "")
        .await;

    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/echo",
            r#"{"serviceName":"echo","replicas":0}"#,
        )
        .await;
    assert_eq!(
        fixture.get_path("/system/function/echo").await.json()["replicas"],
        0
    );
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/echo",
            r#"{"serviceName":"echo.openfaas-fn","replicas":1000}"#,
        )
        .await;
    assert_eq!(
        fixture.get_path("/system/function/echo").await.json()["replicas"],
        20
    );

    fixture
        .expect_status(
            200,
            "DELETE",
            "/system/functions",
            r#"{"functionName":"echo"}"#,
        )
        .await;
    assert!(fixture.fleet.desired_function("echo").is_none());
    fixture
        .expect_status(
            404,
            "DELETE",
            "/system/functions",
            r#"{"functionName":"echo"}"#,
        )
        .await;
    fixture
        .expect_status(
            404,
            "POST",
            "/system/scale-function/echo",
            r#"{"replicas":1}"#,
        )
        .await;
}

/// Older clients of OpenFaaS name the namespace in the query only.
#[tokio::test]
async fn a_namespace_in_the_query_counts_as_one_in_the_body() {
    let fixture = ControllerFixture::new().await;
    fixture
        .expect_status(201, "POST", "/system/namespace/dev", "{}")
        .await;
    fixture
        .expect_status(202, "POST", "/system/functions", &spec_json("echo", ""))
        .await;
    let (path, echo) = ("/system/functions?namespace=dev", spec_json("echo", ""));
    fixture.expect_status(404, "PUT", path, &echo).await;
    fixture.expect_status(202, "POST", path, &echo).await;
    fixture.expect_status(200, "PUT", path, &echo).await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/echo?namespace=dev",
            r#"{"replicas":3}"#,
        )
        .await;
    let replicas = |name| {
        fixture
            .fleet
            .desired_function(name)
            .map(|function| function.replicas)
    };
    assert_eq!((replicas("echo"), replicas("echo.dev")), (Some(1), Some(3)));

    let other = r#"{"functionName":"echo","namespace":"openfaas-fn"}"#;
    let refused = fixture.expect_status(400, "DELETE", path, other).await;
    assert!(refused.text.contains("contradicts"), "{}", refused.text);
    let body = r#"{"functionName":"echo"}"#;
    fixture.expect_status(200, "DELETE", path, body).await;
    assert_eq!((replicas("echo"), replicas("echo.dev")), (Some(1), None));
    fixture.expect_status(404, "DELETE", path, body).await;
    assert_eq!(replicas("echo"), Some(1));

    let (path, secret) = (
        "/system/secrets?namespace=dev",
        r#"{"name":"key","value":"x"}"#,
    );
    fixture.expect_status(201, "POST", path, secret).await;
    fixture
        .expect_status(404, "DELETE", "/system/secrets", r#"{"name":"key"}"#)
        .await;
    fixture
        .expect_status(202, "DELETE", path, r#"{"name":"key"}"#)
        .await;
}

#[tokio::test]
async fn an_image_must_be_a_folder_and_loses_the_clients_tag() {
    let fixture = ControllerFixture::new().await;
    for (method, image) in [
        ("POST", "file:///missing"),
        ("PUT", "file:///missing/echo:latest"),
    ] {
        let body = json!({ "service": "echo", "image": image }).to_string();
        let refused = fixture
            .expect_status(400, method, "/system/functions", &body)
            .await;
        assert!(refused.text.contains("is no folder"), "{}", refused.text);
    }
    let body = json!({ "service": "echo", "image": "file:///srv/echo:latest" }).to_string();
    fixture
        .expect_status(202, "POST", "/system/functions", &body)
        .await;
    let deployed = fixture.fleet.desired_function("echo").unwrap();
    assert_eq!(deployed.spec.image, "file:///srv/echo");
}

#[tokio::test]
async fn a_setting_without_effect_is_reported() {
    let fixture = ControllerFixture::new().await;
    let more = r#","annotations":{"nearpath.io/max-inflght":"4","mine":"x"},"labels":{"nearpath.io/queue":"4"}"#;
    let answer = fixture
        .expect_status(202, "POST", "/system/functions", &spec_json("echo", more))
        .await;
    let warnings: Vec<_> = answer
        .headers
        .get_all("x-nearpath-warning")
        .iter()
        .collect();
    assert_eq!(
        warnings,
        [
            "annotation nearpath.io/max-inflght has no effect: did you mean nearpath.io/max-inflight?",
            "label nearpath.io/queue has no effect: write it as an annotation",
        ]
    );
}

/// Fields that faas-cli reads: a change here is a change of the contract.
#[tokio::test]
async fn the_json_of_a_function_is_the_documented_one() {
    let fixture = ControllerFixture::new().await;
    fixture
        .expect_status(
            201,
            "POST",
            "/system/secrets",
            r#"{"name":"key","value":"x"}"#,
        )
        .await;
    let body = r#"{"service":"echo","image":"file:///srv/echo","envProcess":"cat","envVars":{"A":"b"},"constraints":["x=y"],
        "secrets":["key"],"labels":{"com.openfaas.scale.min":"2"},"annotations":{"topic":"t"},
        "limits":{"memory":"128Mi","cpu":"500m"},"requests":{"memory":"64Mi"},"readOnlyRootFilesystem":true,"new":{}}"#;
    fixture
        .expect_status(202, "POST", "/system/functions", body)
        .await;
    let instance = ObservedInstance {
        id: InstanceId(26),
        state: InstanceState::Ready,
        addr: InstanceAddr(([10, 62, 0, 2], 8080).into()),
        revision: Revision(1),
        pid: 4321,
        start: vec![StartPhase {
            name: "network".into(),
            took: Duration::from_micros(1_500),
        }],
        ready_after: Some(Duration::from_micros(2_500)),
    };
    assert_eq!(
        instance.addr.ip(),
        std::net::IpAddr::V4(Eip([10, 62, 0, 2].into()).0)
    );
    let echo = ObservedFunction {
        id: "echo".parse().unwrap(),
        instances: vec![instance],
        start_failure: Some("slow".into()),
        last_failure: Some("i7: slow".into()),
    };
    *fixture.fleet.observed.lock().unwrap() = [echo].into_iter().collect();

    let mut described = fixture
        .get_path("/system/function/echo?usage=1")
        .await
        .json();
    let created = described["createdAt"].take();
    assert!(
        nearpath_types::status::rfc3339::parse_time(created.as_str().unwrap()).is_some(),
        "{created}"
    );
    let shared = json!({
        "name": "echo", "image": "file:///srv/echo", "namespace": "openfaas-fn", "envProcess": "cat", "envVars": {"A": "b"},
        "constraints": ["x=y"], "secrets": ["key"], "labels": {"com.openfaas.scale.min": "2", "faas_function": "echo"}, "annotations": {"topic": "t"},
        "limits": {"memory": "128Mi", "cpu": "500m"}, "requests": {"memory": "64Mi"}, "readOnlyRootFilesystem": true,
        "invocationCount": 7.0, "replicas": 2, "availableReplicas": 1, "createdAt": null, "revision": 1, "virtualAddress": "10.60.0.2", "notReadyReason": "slow", "lastFailure": "i7: slow",
    });
    let mut wanted = shared.clone();
    wanted["usage"] = json!({"cpu": 12.5, "totalMemoryBytes": 4096.0});
    wanted["instances"] = json!([{
        "id": "i1a", "state": "ready", "addr": "10.62.0.2:8080", "revision": 1, "pid": 4321, "startMs": {"network": 1.5}, "readyMs": 2.5,
    }]);
    assert_eq!(described, wanted);

    let mut listed = fixture.get_path("/system/functions").await.json();
    listed[0]["createdAt"].take();
    assert_eq!(listed, json!([shared]));
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn invalid_bodies_are_refused_with_the_field() {
    let fixture = ControllerFixture::new().await;
    let refused = |body: &'static str, words: &'static [&'static str]| (body, words);
    for (body, words) in [
        refused("{\"service\":\n  nonsense}", &["line 2 column 4"]),
        refused("", &["empty"]),
        refused("[]", &["a list", "JSON object"]),
        refused("{}", &["service"]),
        refused(
            r#"{"service":"Echo_1","image":"file:///x"}"#,
            &["Echo_1", "RFC 1035"],
        ),
        refused(r#"{"service":"a.b","image":"file:///x"}"#, &["a.b"]),
        refused(
            r#"{"service":"echo","image":"nginx"}"#,
            &["image", "file:///"],
        ),
        refused(
            r#"{"service":"echo","image":"file:///x","namespace":"dev"}"#,
            &["namespace dev"],
        ),
        refused(
            r#"{"service":"echo","image":"file:///x","namespace":"-"}"#,
            &["invalid namespace"],
        ),
        refused(
            r#"{"service":"echo","image":"file:///x","secrets":["a","b"]}"#,
            &["a, b", "POST /system/secrets"],
        ),
        refused(
            r#"{"service":"echo","image":"file:///x","secrets":["../a"]}"#,
            &["../a"],
        ),
        refused(
            r#"{"service":"echo","image":"file:///x","labels":{"com.openfaas.scale.min":"few"}}"#,
            &["com.openfaas.scale.min"],
        ),
        refused(
            r#"{"service":"echo","image":"file:///x","annotations":{"nearpath.io/queue-timeout":"soon"}}"#,
            &["nearpath.io/queue-timeout"],
        ),
        refused(
            r#"{"service":"echo","image":"file:///x","limits":{"memory":"much"}}"#,
            &["limits.memory"],
        ),
    ] {
        let reply = fixture
            .expect_status(400, "POST", "/system/functions", body)
            .await;
        assert!(
            words.iter().all(|word| reply.text.contains(word)),
            "{words:?}: {}",
            reply.text
        );
        assert_eq!(
            (
                reply.header("x-nearpath-reason"),
                reply.header("x-openfaas-internal")
            ),
            ("bad_request", "controller")
        );
        assert!(reply.header("content-type").starts_with("text/plain"));
    }
    assert_eq!(
        fixture.get_path("/system/functions").await.text,
        "[]",
        "nothing was deployed"
    );

    let bomb = format!(r#"{{"service":"echo","image":"{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(
        fixture
            .expect_status(413, "POST", "/system/functions", &bomb)
            .await
            .header("x-nearpath-reason"),
        "body_too_large"
    );
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    fixture
        .expect_status(400, "POST", "/system/functions", &deep)
        .await;
}

#[tokio::test]
async fn replicas_are_bounded() {
    let fixture = ControllerFixture::new().await;
    fixture.deploy_function("echo").await;
    for bad in [
        r#"{"replicas":-1}"#,
        r#"{"replicas":1.5}"#,
        r#"{"replicas":"2"}"#,
        r#"{"serviceName":"echo"}"#,
        r#"{"replicas":1,"serviceName":"other"}"#,
        r#"{"replicas":1,"namespace":"-"}"#,
    ] {
        fixture
            .expect_status(400, "POST", "/system/scale-function/echo", bad)
            .await;
    }
    fixture
        .expect_status(
            202,
            "POST",
            "/system/scale-function/echo",
            r#"{"replicas":18446744073709551615}"#,
        )
        .await;
    assert_eq!(fixture.fleet.desired_function("echo").unwrap().replicas, 20);
    fixture
        .expect_status(
            400,
            "POST",
            "/system/scale-function/%FF",
            r#"{"replicas":1}"#,
        )
        .await;
    fixture
        .expect_status(
            400,
            "POST",
            "/system/scale-function/a%2Fb",
            r#"{"replicas":1}"#,
        )
        .await;
}

#[tokio::test]
async fn waking_a_sleeping_function_scales_it_to_its_minimum() {
    let fixture = ControllerFixture::new().await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/functions",
            &spec_json("echo", r#","labels":{"com.openfaas.scale.min":"3"}"#),
        )
        .await;
    let id = "echo".parse().unwrap();
    for _ in 0..3 {
        fixture
            .expect_status(
                202,
                "POST",
                "/system/scale-function/echo",
                r#"{"replicas":0}"#,
            )
            .await;
        (0..100).for_each(|_| fixture.controller.wake_function(&id));
        fixture.fleet.wait_for_replicas("echo", 3).await;
    }
    fixture
        .controller
        .wake_function(&"unknown".parse().unwrap());
    let fixture = fixture.reopen().await;
    assert_eq!(
        fixture.fleet.desired_function("echo").unwrap().replicas,
        3,
        "a wake-up is kept like any other change"
    );
}
