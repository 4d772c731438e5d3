//! Secrets, namespaces, status queries, and the endpoints without an object.

use nearpath_controller::{AuthMode, BuildVersion, ControllerConfig};
use nearpath_types::Revision;
use serde_json::json;

use crate::fixture::{ControllerFixture, spec_json, test_config};

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn secret_values_are_never_returned() {
    let fixture = ControllerFixture::new().await;
    fixture
        .expect_status(
            201,
            "POST",
            "/system/secrets",
            r#"{"name":"key","value":"hush-1","namespace":""}"#,
        )
        .await;
    assert_eq!(
        fixture
            .expect_status(
                409,
                "POST",
                "/system/secrets",
                r#"{"name":"key","value":"hush-2"}"#
            )
            .await
            .header("x-nearpath-reason"),
        "conflict"
    );
    fixture
        .expect_status(
            404,
            "PUT",
            "/system/secrets",
            r#"{"name":"cert","value":"x"}"#,
        )
        .await;
    fixture
        .expect_status(
            202,
            "POST",
            "/system/functions",
            &spec_json("echo", r#","secrets":["key"]"#),
        )
        .await;
    assert_eq!(
        fixture.fleet.desired_function("echo").unwrap().secrets["key"],
        b"hush-1"
    );

    fixture
        .expect_status(
            200,
            "PUT",
            "/system/secrets",
            r#"{"name":"key","rawValue":"AP8="}"#,
        )
        .await;
    let wanted = fixture.fleet.desired_function("echo").unwrap();
    assert_eq!(
        (wanted.secrets["key"].as_slice(), wanted.revision),
        ([0u8, 255].as_slice(), Revision(2))
    );

    assert_eq!(
        fixture.get_path("/system/secrets").await.json(),
        json!([{"name": "key", "namespace": "openfaas-fn"}])
    );
    for bad in [
        r#"{"name":"../key","value":"x"}"#,
        r#"{"name":"k","rawValue":"hush!"}"#,
        r#"{"name":"k"}"#,
        r#"{"value":"x"}"#,
    ] {
        let reply = fixture
            .expect_status(400, "POST", "/system/secrets", bad)
            .await;
        assert!(!reply.text.contains("hush"), "{}", reply.text);
    }
    fixture
        .expect_status(
            400,
            "POST",
            "/system/secrets",
            r#"{"name":"k","value":"x","namespace":"dev"}"#,
        )
        .await;

    let used = fixture
        .expect_status(409, "DELETE", "/system/secrets", r#"{"name":"key"}"#)
        .await;
    assert!(used.text.contains("echo"), "{}", used.text);
    fixture
        .expect_status(
            200,
            "DELETE",
            "/system/functions",
            r#"{"functionName":"echo"}"#,
        )
        .await;
    fixture
        .expect_status(202, "DELETE", "/system/secrets", r#"{"name":"key"}"#)
        .await; // 204 would be an error to faas-cli
    fixture
        .expect_status(404, "DELETE", "/system/secrets", r#"{"name":"key"}"#)
        .await;
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn namespaces_are_created_changed_and_removed() {
    let fixture = ControllerFixture::new().await;
    let body = r#"{"name":"dev","annotations":{"openfaas":"1"},"labels":{"openfaas":"1"}}"#;
    fixture
        .expect_status(201, "POST", "/system/namespace/", body)
        .await;
    fixture
        .expect_status(409, "POST", "/system/namespace/", body)
        .await;
    fixture
        .expect_status(201, "POST", "/system/namespace/ops", "")
        .await;
    assert_eq!(
        fixture.get_path("/system/namespaces").await.json(),
        json!(["dev", "openfaas-fn", "ops"])
    );
    assert_eq!(
        fixture.get_path("/system/namespace/dev").await.json(),
        serde_json::from_str::<serde_json::Value>(body).unwrap()
    );
    assert_eq!(
        fixture
            .get_path("/system/namespace/openfaas-fn")
            .await
            .json()["annotations"]["openfaas"],
        "1"
    );

    fixture
        .expect_status(
            200,
            "PUT",
            "/system/namespace/dev",
            r#"{"labels":{"a":"b"},"annotations":null}"#,
        )
        .await;
    assert_eq!(
        fixture.get_path("/system/namespace/dev").await.json()["labels"],
        json!({"a": "b"})
    );
    fixture
        .expect_status(400, "PUT", "/system/namespace/dev", r#"{"name":"ops"}"#)
        .await;
    fixture
        .expect_status(404, "PUT", "/system/namespace/qa", "{}")
        .await;
    fixture
        .expect_status(404, "GET", "/system/namespace/qa", "")
        .await;
    fixture
        .expect_status(400, "POST", "/system/namespace/", r#"{"labels":{}}"#)
        .await;
    fixture
        .expect_status(400, "POST", "/system/namespace/Dev", "")
        .await;

    fixture
        .expect_status(
            202,
            "POST",
            "/system/functions",
            &spec_json("echo", r#","namespace":"dev""#),
        )
        .await;
    assert_eq!(
        fixture.get_path("/system/functions").await.json(),
        json!([])
    );
    assert_eq!(
        fixture
            .get_path("/system/functions?namespace=dev")
            .await
            .json()[0]["namespace"],
        "dev"
    );
    fixture
        .expect_status(400, "GET", "/system/functions?namespace=qa", "")
        .await;
    fixture
        .expect_status(400, "GET", "/system/secrets?namespace=qa", "")
        .await;
    let refused = fixture
        .expect_status(409, "DELETE", "/system/namespace/dev", "")
        .await;
    assert!(refused.text.contains("function echo"), "{}", refused.text);
    fixture
        .expect_status(
            200,
            "DELETE",
            "/system/functions",
            r#"{"functionName":"echo","namespace":"dev"}"#,
        )
        .await;
    fixture
        .expect_status(202, "DELETE", "/system/namespace/dev", r#"{"name":"dev"}"#)
        .await;
    fixture
        .expect_status(404, "DELETE", "/system/namespace/dev", "")
        .await;
    fixture
        .expect_status(409, "DELETE", "/system/namespace/openfaas-fn", "")
        .await;
}

#[tokio::test]
async fn status_queries_are_filtered_by_namespace() {
    let fixture = ControllerFixture::new().await;
    for (path, first) in [
        ("edges", "front"),
        ("memory", "shop"),
        ("paths", "gateway"),
        ("pool", "LISTEN"),
    ] {
        let here = fixture
            .expect_status(200, "GET", &format!("/system/{path}"), "")
            .await;
        assert!(here.text.contains(first), "{path}: {}", here.text);
        let listed = here.json();
        assert_eq!(
            listed.as_array().map(Vec::len),
            Some(1),
            "the other one is in another namespace: {listed}"
        );
        fixture
            .expect_status(400, "GET", &format!("/system/{path}?namespace=nowhere"), "")
            .await;
    }
}

#[tokio::test]
async fn the_version_names_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let version = BuildVersion {
        release: "1.2.3".into(),
        commit_sha: "0123abcd".into(),
        commit_message: "Adds a thing".into(),
    };
    let expected = json!({
        "release": "1.2.3", "sha": "0123abcd", "commit_message": "Adds a thing",
    });
    let config = ControllerConfig {
        version,
        ..test_config(folder.path(), AuthMode::Disabled)
    };
    let fixture = ControllerFixture::with_config(config).await;
    let info = fixture.get_path("/system/info").await.json();
    assert_eq!(info["version"], expected);
    assert_eq!(info["provider"]["version"], expected);
}

#[tokio::test]
async fn the_other_endpoints_answer() {
    let fixture = ControllerFixture::new().await;
    let info = fixture.get_path("/system/info").await.json();
    assert_eq!(
        (info["provider"]["provider"].as_str(), info["arch"].as_str()),
        (Some("nearpath"), Some(std::env::consts::ARCH))
    );
    assert_eq!(info["version"]["release"], env!("CARGO_PKG_VERSION"));
    assert_eq!(fixture.get_path("/healthz").await.text, "OK\n");
    fixture.expect_status(200, "HEAD", "/healthz", "").await;
    assert!(fixture.get_path("/ui/").await.text.contains("nearpath ls"));
    assert_eq!(
        fixture
            .expect_status(307, "GET", "/", "")
            .await
            .header("location"),
        "/ui/"
    );
    for (method, path) in [
        ("POST", "/system/alert"),
        ("GET", "/system/telemetry"),
        ("POST", "/async-function/echo"),
        ("POST", "/async-function/echo.dev/a/b?c"),
    ] {
        assert_eq!(
            fixture
                .expect_status(501, method, path, "")
                .await
                .header("x-nearpath-reason"),
            "not_implemented"
        );
    }
    assert_eq!(
        fixture
            .expect_status(404, "GET", "/system/nonsense", "")
            .await
            .header("x-nearpath-reason"),
        "not_found"
    );
    let wrong = fixture
        .expect_status(405, "PATCH", "/system/functions", "")
        .await;
    assert_eq!(wrong.header("x-nearpath-reason"), "method_not_allowed");
    assert!(wrong.header("allow").contains("PUT"), "{wrong:?}");
}
