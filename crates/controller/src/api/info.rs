//! Who answers here, and whether it is well.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::{Html, Redirect};
use serde_json::{Value, json};

use crate::controller::Controller;

/// `GET /system/info`
pub(crate) async fn info(State(it): State<Controller>) -> Answer<Value> {
    let version = &it.inner.version;
    let version = json!({
        "release": version.release, "sha": version.sha, "commit_message": version.commit_message,
    });
    Answer(json!({
        "provider": { "provider": "nearpath", "version": version, "orchestration": "nearpath" },
        "version": version,
        "arch": std::env::consts::ARCH,
    }))
}

/// `GET /healthz`. A store that takes no changes is told and not failed: calls go on, and a health check that fails
/// would turn them away too.
pub(crate) async fn healthz(State(it): State<Controller>) -> String {
    match it.trouble() {
        None => "OK\n".to_owned(),
        Some(why) => format!("OK, but read-only: {why}\n"),
    }
}

/// `GET /ui/`
pub(crate) async fn ui() -> Html<&'static str> {
    Html(include_str!("ui.html"))
}

/// `/`
pub(crate) async fn to_ui() -> Redirect {
    Redirect::temporary("/ui/")
}
