//! Calls whose time is over: whose fault that is depends on whom the call waited for.

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};

use crate::contract::support::{AnyError, WatchdogProcess, frames, full, send, start_tenant, text};

/// A tenant that answers when the whole body is there.
async fn count_body(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let arrived = request.into_body().collect().await;
    text_response(&arrived.map_or(0, |body| body.to_bytes().len()).to_string())
}

fn text_response(text: &str) -> Response<Full<Bytes>> {
    Response::new(full(text))
}

async fn post(
    watchdog: &WatchdogProcess,
    version: Version,
    body: impl Body<Data = Bytes, Error: Into<AnyError>> + Send + Unpin + 'static,
) -> (String, u16, String) {
    let request = Request::post("/").version(version).body(body).unwrap();
    let response = send(watchdog.addr, request).await.unwrap();
    let reason = response
        .headers()
        .get("x-nearpath-reason")
        .map_or("", |reason| reason.to_str().unwrap())
        .to_owned();
    let (status, said) = text(response).await;
    (reason, status, said)
}

/// Sends half a body and holds the rest back; then a whole one, to see that the function is in
/// order.
async fn check_late_upload(watchdog: &WatchdogProcess) {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let (sender, body) = frames();
        sender.send(Ok(Frame::data("half".into()))).await.unwrap();
        let (reason, status, said) = post(watchdog, version, body).await;
        assert_eq!(
            (reason.as_str(), status),
            ("slow_request", 408),
            "{version:?}: {said}"
        );
        assert!(
            said.starts_with("watchdog: slow_request: ") && said.ends_with(" (exec_timeout)\n"),
            "{said}"
        );
        drop(sender);
    }
    assert_eq!(
        post(watchdog, Version::HTTP_11, full("whole")).await,
        (String::new(), 200, "5".to_owned())
    );
}

#[tokio::test]
async fn a_late_upload_is_the_callers_fault_in_mode_http() {
    let tenant = start_tenant(count_body).await;
    for hold in ["false", "true"] {
        let settings = [("exec_timeout", "500ms"), ("http_buffer_req_body", hold)];
        check_late_upload(&WatchdogProcess::in_http_mode(tenant, &settings)).await;
    }
    let settings = [
        ("exec_timeout", "500ms"),
        ("read_timeout", "0"),
        ("upstream_protocol", "h2c"),
    ];
    check_late_upload(&WatchdogProcess::in_http_mode(tenant, &settings)).await;
}

#[tokio::test]
async fn a_late_upload_is_the_callers_fault_in_the_forking_modes() {
    for mode in ["streaming", "serializing"] {
        let command = ("fprocess", "sh -c 'printf %d $(wc -c)'");
        check_late_upload(&WatchdogProcess::start(&[
            ("mode", mode),
            command,
            ("exec_timeout", "500ms"),
        ]))
        .await;
    }
}

#[tokio::test]
async fn an_upload_that_the_function_does_not_take_is_the_functions_fault() {
    let silent =
        start_tenant(async |_| std::future::pending::<Response<Full<Bytes>>>().await).await;
    let limit = ("exec_timeout", "1s");
    for watchdog in [
        WatchdogProcess::in_http_mode(silent, &[limit]),
        WatchdogProcess::start(&[("fprocess", "sleep 1000"), limit]),
    ] {
        let endless = stream::repeat_with(|| {
            Ok::<_, AnyError>(Frame::data(Bytes::from_static(&[0; 1 << 16])))
        });
        let (reason, status, said) =
            post(&watchdog, Version::HTTP_2, StreamBody::new(endless)).await;
        assert_eq!((reason.as_str(), status), ("exec_timeout", 504), "{said}");
    }
}

/// A gRPC caller may be silent for as long as it likes: the function knows when it is its turn.
#[tokio::test]
async fn a_conversation_that_is_late_is_the_functions_fault() {
    let silent =
        start_tenant(async |_| std::future::pending::<Response<Full<Bytes>>>().await).await;
    let watchdog = WatchdogProcess::in_http_mode(silent, &[("exec_timeout", "500ms")]);
    let (sender, body) = frames();
    sender.send(Ok(Frame::data("half".into()))).await.unwrap();
    let request = Request::post("/")
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc");
    let response = send(watchdog.addr, request.body(body).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()["x-nearpath-reason"], "exec_timeout");
    drop(sender);
}
