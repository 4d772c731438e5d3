//! Who may use the API.

use axum::body::Body;
use http::Request;
use nearpath_controller::{Auth, Credentials};

use crate::lab::{Lab, Reply, config, spec};

async fn ask(lab: &Lab, path: &str, authorization: Option<&str>) -> Reply {
    let mut request = Request::builder().uri(path);
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    lab.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn refusals_are_openfaas_s() {
    let folder = tempfile::tempdir().unwrap();
    let given = Credentials { user: "admin".into(), password: "secret".into() };
    let lab = Lab::with(config(folder.path(), Auth::Given(given))).await;
    for wrong in [None, Some("Bearer "), Some("Bearer"), Some("Basic YWRtaW46d3Jvbmc="), Some("Basic ?")] {
        for path in ["/system/functions", "/system/info", "/ui/", "/", "/system/nonsense", "/nonsense"] {
            let reply = ask(&lab, path, wrong).await;
            assert_eq!((reply.status.as_u16(), reply.text.as_str()), (401, "invalid credentials"), "{path} {wrong:?}");
            assert_eq!(reply.header("www-authenticate"), r#"Basic realm="Restricted""#);
            assert_eq!(reply.header("x-nearpath-reason"), "unauthorized");
        }
    }
    assert_eq!(ask(&lab, "/system/functions", Some("Basic YWRtaW46c2VjcmV0")).await.status, 200);
    assert_eq!(ask(&lab, "/healthz", None).await.status, 200);
}

#[tokio::test]
async fn without_authentication_an_empty_bearer_is_anonymous() {
    let lab = Lab::new().await;
    assert_eq!(ask(&lab, "/system/functions", Some("Bearer ")).await.status, 200);
}

#[tokio::test]
async fn a_password_is_made_at_the_first_start_and_kept() {
    use base64::Engine;
    let folder = tempfile::tempdir().unwrap();
    drop(Lab::with(config(folder.path(), Auth::Generated)).await);
    let lab = Lab::with(config(folder.path(), Auth::Generated)).await;
    let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let pair = format!("{}:{}", read("basic-auth-user"), read("basic-auth-password"));
    let header = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
    assert_eq!(ask(&lab, "/system/functions", Some(&header)).await.status, 200);
    let debug = format!("{:?}", lab.controller.credentials());
    assert!(!debug.contains(&read("basic-auth-password")), "{debug}");
}

/// What a page of another site makes a browser send: no preflight asks before a `text/plain` body.
async fn from_a_page(lab: &Lab, headers: &[(&str, &str)]) -> Reply {
    let mut request = Request::builder().method("POST").uri("/system/functions").header("content-type", "text/plain");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    lab.send(request.body(Body::from(spec("echo", ""))).unwrap()).await
}

fn assert_refused(lab: &Lab, reply: &Reply, what_to_do: &str) {
    assert_eq!((reply.status.as_u16(), reply.header("x-nearpath-reason")), (403, "not_allowed"), "{}", reply.text);
    assert!(reply.text.contains(what_to_do), "{}", reply.text);
    assert!(lab.controller.model().functions.is_empty());
}

#[tokio::test]
async fn without_authentication_no_web_page_gives_orders() {
    let lab = Lab::new().await;
    let own = ("host", "127.0.0.1:8080");
    for foreign in [("origin", "http://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
        assert_refused(&lab, &from_a_page(&lab, &[own, foreign]).await, "call the API from a program");
    }
    let rebound = [("host", "evil.example"), ("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")];
    assert_refused(&lab, &from_a_page(&lab, &rebound).await, "ask http://127.0.0.1");
    assert_eq!(from_a_page(&lab, &[own, ("origin", "http://127.0.0.1:8080")]).await.status, 202);
}

#[tokio::test]
async fn a_browsers_remembered_password_does_not_serve_other_sites() {
    let folder = tempfile::tempdir().unwrap();
    let given = Credentials { user: "admin".into(), password: "secret".into() };
    let lab = Lab::with(config(folder.path(), Auth::Given(given))).await;
    let remembered = [("authorization", "Basic YWRtaW46c2VjcmV0"), ("host", "gw.example")];
    for foreign in [("origin", "http://evil.example"), ("sec-fetch-site", "same-site")] {
        let headers = [&remembered[..], &[foreign]].concat();
        assert_refused(&lab, &from_a_page(&lab, &headers).await, "call the API from a program");
    }
    assert_eq!(from_a_page(&lab, &remembered).await.status, 202, "any name will do with a password");
}
