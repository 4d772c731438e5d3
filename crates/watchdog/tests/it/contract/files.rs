//! Mode `static`.

use std::os::unix::fs::symlink;

use http::{Method, Request};
use tempfile::TempDir;

use crate::contract::support::{WatchdogProcess, full, send, text};

fn start_site() -> (TempDir, WatchdogProcess) {
    let top = tempfile::tempdir().unwrap();
    let public = top.path().join("public");
    std::fs::create_dir_all(public.join("sub")).unwrap();
    std::fs::write(top.path().join("secret"), "secret").unwrap();
    std::fs::write(public.join("index.html"), "<p>home").unwrap();
    std::fs::write(public.join("sub/index.html"), "<p>sub").unwrap();
    std::fs::write(public.join("a b.css"), "p{}").unwrap();
    std::fs::write(public.join("big.bin"), vec![7; 300_000]).unwrap();
    symlink(top.path().join("secret"), public.join("link")).unwrap();
    let watchdog = WatchdogProcess::start(&[
        ("mode", "static"),
        ("static_path", public.to_str().unwrap()),
    ]);
    (top, watchdog)
}

#[tokio::test]
async fn files_with_types_and_index() {
    let (_top, watchdog) = start_site();
    for (path, kind, body) in [
        ("/", "text/html; charset=utf-8", "<p>home"),
        ("/sub/", "text/html; charset=utf-8", "<p>sub"),
        ("/a%20b.css", "text/css; charset=utf-8", "p{}"),
        ("/a%20b.css?v=1", "text/css; charset=utf-8", "p{}"),
    ] {
        let response = send(watchdog.addr, Request::get(path).body(full("")).unwrap())
            .await
            .unwrap();
        assert_eq!(response.headers()["content-type"], kind, "{path}");
        assert_eq!(text(response).await, (200, body.to_owned()), "{path}");
    }
    assert_eq!(watchdog.get("/big.bin").await.1.len(), 300_000);
    let response = send(watchdog.addr, Request::get("/sub").body(full("")).unwrap())
        .await
        .unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["location"]),
        (301, &"/sub/".parse().unwrap())
    );
}

#[tokio::test]
async fn nothing_outside_the_folder_is_served() {
    let (_top, watchdog) = start_site();
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/sub/../../secret",
        "/..%2fsecret",
        "/link",
        "//etc/passwd",
        "/%00",
        "/none",
    ] {
        assert_eq!(watchdog.get(path).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn head_conditions_and_methods() {
    let (_top, watchdog) = start_site();
    let ask = async |method: Method, name: &'static str, value: String| {
        let request = Request::builder()
            .method(method)
            .uri("/big.bin")
            .header(name, value)
            .body(full(""))
            .unwrap();
        send(watchdog.addr, request).await.unwrap()
    };
    let head = ask(Method::HEAD, "x-none", String::new()).await;
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (200, &"300000".parse().unwrap())
    );
    let tag = head.headers()["etag"].to_str().unwrap().to_owned();
    let date = head.headers()["last-modified"].to_str().unwrap().to_owned();
    assert_eq!(text(head).await.1, "");
    assert_eq!(
        ask(Method::GET, "if-none-match", format!("\"x\", {tag}"))
            .await
            .status(),
        304
    );
    assert_eq!(
        ask(Method::GET, "if-none-match", "\"x\"".to_owned())
            .await
            .status(),
        200
    );
    assert_eq!(
        ask(Method::GET, "if-modified-since", date).await.status(),
        304
    );
    let long_ago = "Sun, 06 Nov 1994 08:49:37 GMT".to_owned();
    assert_eq!(
        ask(Method::GET, "if-modified-since", long_ago)
            .await
            .status(),
        200
    );
    let refused = ask(Method::POST, "x-none", String::new()).await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["allow"]),
        (405, &"GET, HEAD".parse().unwrap())
    );
}
