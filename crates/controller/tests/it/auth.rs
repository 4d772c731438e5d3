//! Authentication of the API.

use std::net::Ipv4Addr;

use axum::body::Body;
use http::Request;
use nearpath_controller::{AdminCredentials, AuthMode};
use nearpath_types::SourceNetwork;

use crate::fixture::{ApiReply, ControllerFixture, spec_json, test_config};

async fn get_with_authorization(
    fixture: &ControllerFixture,
    path: &str,
    authorization: Option<&str>,
) -> ApiReply {
    let mut request = Request::builder().uri(path);
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    fixture
        .send_request(request.body(Body::empty()).unwrap())
        .await
}

#[tokio::test]
async fn unauthenticated_requests_get_openfaas_replies() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = AdminCredentials {
        user: "admin".into(),
        password: "secret".into(),
    };
    let fixture =
        ControllerFixture::with_config(test_config(folder.path(), AuthMode::Provided(credentials)))
            .await;
    for wrong in [
        None,
        Some("Bearer "),
        Some("Bearer"),
        Some("Basic YWRtaW46d3Jvbmc="),
        Some("Basic ?"),
    ] {
        for path in [
            "/system/functions",
            "/system/info",
            "/ui/",
            "/",
            "/system/nonsense",
            "/nonsense",
        ] {
            let reply = get_with_authorization(&fixture, path, wrong).await;
            assert_eq!(
                (reply.status.as_u16(), reply.text.as_str()),
                (401, "invalid credentials"),
                "{path} {wrong:?}"
            );
            assert_eq!(
                reply.header("www-authenticate"),
                r#"Basic realm="Restricted""#
            );
            assert_eq!(reply.header("x-nearpath-reason"), "unauthorized");
        }
    }
    assert_eq!(
        get_with_authorization(
            &fixture,
            "/system/functions",
            Some("Basic YWRtaW46c2VjcmV0")
        )
        .await
        .status,
        200
    );
    assert_eq!(
        get_with_authorization(&fixture, "/healthz", None)
            .await
            .status,
        200
    );
}

/// Sends a request with this `USER:PASSWORD` of a caller in `192.0.2.0`.
async fn log_in_from(fixture: &ControllerFixture, host: u8, login: &str) -> ApiReply {
    use base64::Engine;
    let pair = base64::engine::general_purpose::STANDARD.encode(login);
    let source = SourceNetwork::of(Ipv4Addr::new(192, 0, 2, host).into());
    let request = Request::get("/system/info")
        .header("authorization", format!("Basic {pair}"))
        .extension(source)
        .body(Body::empty());
    fixture.send_request(request.unwrap()).await
}

#[tokio::test]
async fn a_source_that_guesses_passwords_is_locked_out_alone() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = AdminCredentials {
        user: "admin".into(),
        password: "secret".into(),
    };
    let fixture =
        ControllerFixture::with_config(test_config(folder.path(), AuthMode::Provided(credentials)))
            .await;
    for guess in 0..11 {
        let reply = log_in_from(&fixture, 1, &format!("admin:{guess}")).await;
        assert_eq!(reply.status.as_u16(), 401, "guess {guess}");
    }
    for login in ["admin:12", "admin:secret"] {
        let reply = log_in_from(&fixture, 1, login).await;
        assert_eq!(reply.status.as_u16(), 429, "{login}: {}", reply.text);
        assert_eq!(reply.header("x-nearpath-reason"), "login_locked");
        assert_eq!(reply.header("retry-after"), "1");
        assert!(reply.text.contains("192.0.2.1"), "{}", reply.text);
    }
    let other = log_in_from(&fixture, 2, "admin:secret").await;
    assert_eq!(other.status.as_u16(), 200);
}

#[tokio::test]
async fn without_authentication_an_empty_bearer_is_anonymous() {
    let fixture = ControllerFixture::new().await;
    assert_eq!(
        get_with_authorization(&fixture, "/system/functions", Some("Bearer "))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_password_is_generated_at_the_first_start_and_kept() {
    use base64::Engine;
    let folder = tempfile::tempdir().unwrap();
    drop(ControllerFixture::with_config(test_config(folder.path(), AuthMode::Generated)).await);
    let fixture =
        ControllerFixture::with_config(test_config(folder.path(), AuthMode::Generated)).await;
    let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let pair = format!(
        "{}:{}",
        read("basic-auth-user"),
        read("basic-auth-password")
    );
    let header = format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(pair)
    );
    assert_eq!(
        get_with_authorization(&fixture, "/system/functions", Some(&header))
            .await
            .status,
        200
    );
    let debug = format!("{:?}", fixture.controller.credentials());
    assert!(!debug.contains(&read("basic-auth-password")), "{debug}");
}

/// A request as a browser sends it for a page of another site: a `text/plain` body needs no
/// preflight.
async fn post_from_page(fixture: &ControllerFixture, headers: &[(&str, &str)]) -> ApiReply {
    let mut request = Request::builder()
        .method("POST")
        .uri("/system/functions")
        .header("content-type", "text/plain");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    fixture
        .send_request(request.body(Body::from(spec_json("echo", ""))).unwrap())
        .await
}

fn assert_refused(fixture: &ControllerFixture, reply: &ApiReply, what_to_do: &str) {
    assert_eq!(
        (reply.status.as_u16(), reply.header("x-nearpath-reason")),
        (403, "not_allowed"),
        "{}",
        reply.text
    );
    assert!(reply.text.contains(what_to_do), "{}", reply.text);
    assert!(fixture.controller.model().functions.is_empty());
}

#[tokio::test]
async fn without_authentication_foreign_pages_are_refused() {
    let fixture = ControllerFixture::new().await;
    let own = ("host", "127.0.0.1:8080");
    for header in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
    ] {
        assert_refused(
            &fixture,
            &post_from_page(&fixture, &[own, header]).await,
            "call the API from a program",
        );
    }
    let rebound = [
        ("host", "evil.example"),
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "same-origin"),
    ];
    assert_refused(
        &fixture,
        &post_from_page(&fixture, &rebound).await,
        "ask http://127.0.0.1",
    );
    assert_eq!(
        post_from_page(&fixture, &[own, ("origin", "http://127.0.0.1:8080")])
            .await
            .status,
        202
    );
}

#[tokio::test]
async fn foreign_pages_cannot_use_a_browsers_stored_password() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = AdminCredentials {
        user: "admin".into(),
        password: "secret".into(),
    };
    let fixture =
        ControllerFixture::with_config(test_config(folder.path(), AuthMode::Provided(credentials)))
            .await;
    let stored = [
        ("authorization", "Basic YWRtaW46c2VjcmV0"),
        ("host", "gw.example"),
    ];
    for header in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "same-site"),
    ] {
        let headers = [&stored[..], &[header]].concat();
        assert_refused(
            &fixture,
            &post_from_page(&fixture, &headers).await,
            "call the API from a program",
        );
    }
    assert_eq!(
        post_from_page(&fixture, &stored).await.status,
        202,
        "any name will do with a password"
    );
}
