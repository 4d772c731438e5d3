//! Version and health of the controller.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::{Html, Redirect};
use serde_json::{Value, json};

use crate::controller::Controller;

/// `GET /system/info`
pub(crate) async fn system_info(State(it): State<Controller>) -> Answer<Value> {
    let version = &it.inner.version;
    // Reported twice: OpenFaaS has a version of the provider and one of the gateway, which are one
    // program here.
    let version = json!({
        "release": version.release, "sha": version.commit_sha, "commit_message": version.commit_message,
    });
    Answer(json!({
        "provider": { "provider": "nearpath", "version": version, "orchestration": "nearpath" },
        "version": version,
        "arch": std::env::consts::ARCH,
    }))
}

/// `GET /healthz`. A read-only store is reported but not a failure: calls go on, and a failed
/// health check would stop them too.
pub(crate) async fn health_check(State(it): State<Controller>) -> String {
    match it.read_only_reason() {
        None => "OK\n".to_owned(),
        Some(reason) => format!("OK, but read-only: {reason}\n"),
    }
}

/// `GET /ui/`
pub(crate) async fn ui_page() -> Html<&'static str> {
    Html(include_str!("ui.html"))
}

/// `/`
pub(crate) async fn redirect_to_ui() -> Redirect {
    // Temporary: browsers cache a permanent redirect without end.
    Redirect::temporary("/ui/")
}
