//! Calls of other nodes at the function's own port.

use std::sync::Arc;

use nearpath_types::{FunctionPolicy, FunctionRoute, FunctionServer};

use http_body_util::BodyExt;

use super::fixture::{TestNode, elsewhere, here, new_authority};
use crate::fixture::{SharedNetwork, full_body, start_instance, start_mirror};

/// Starts two nodes; `echo` on b has a watchdog that names itself, and a server of its own that mirrors.
async fn start_nodes() -> [TestNode; 2] {
    let authority = new_authority();
    let nodes = ["a", "b"].map(|name| TestNode::start(&authority, name));
    publish_echo(nodes, start_mirror().await).await
}

/// As [`start_nodes`], with the given nodes and the server of `echo`.
pub(super) async fn publish_echo(
    [a, b]: [TestNode; 2],
    server: std::net::SocketAddr,
) -> [TestNode; 2] {
    let watchdog = start_instance(async |request: http::Request<hyper::body::Incoming>| {
        // An unread body would break the connection, perhaps before the response is read.
        request.into_body().collect().await.unwrap();
        http::Response::new(full_body("watchdog"))
    });
    let watchdog = watchdog.await;
    let server = FunctionServer {
        addr: server,
        base_path: String::new(),
        exec_timeout: None,
        network: Arc::new(SharedNetwork),
    };
    let mut route: FunctionRoute = here("echo", FunctionPolicy::default(), &[watchdog]);
    route.instances[0].server = Some(server.into());
    b.publish(&[], vec![route]);
    a.publish(
        &[&b],
        vec![elsewhere("echo", FunctionPolicy::default(), &[&b])],
    );
    [a, b]
}

#[tokio::test]
async fn a_complete_request_goes_to_the_own_port() {
    let [a, _b] = start_nodes().await;
    let path = "quic; obstacle=other_node; node=b; then=loopback";
    let response = a.get("/function/echo/x?y=1").await;
    assert_eq!(
        (response.status, response.header("x-nearpath-path")),
        (200, path)
    );
    assert!(response.body.starts_with("GET /x?y=1\n"), "{response:?}");
    assert_eq!(response.header("content-type"), "text/plain");
    let body = vec![b'x'; 10 * 1024];
    let response = a.post("/function/echo", body.clone()).await;
    assert_eq!(
        (response.status, response.header("x-nearpath-path")),
        (200, path)
    );
    assert!(
        response.body.contains("content-length: 10240\n"),
        "{response:?}"
    );
    assert!(response.body.ends_with(std::str::from_utf8(&body).unwrap()));
}

#[tokio::test]
async fn the_watchdogs_paths_and_long_bodies_go_to_the_watchdog() {
    let [a, _b] = start_nodes().await;
    assert_eq!(a.get("/function/echo/_/health").await.body, "watchdog");
    let long = a.post("/function/echo", vec![b'x'; 100 * 1024]).await;
    assert_eq!(long.body, "watchdog");
    assert_eq!(
        long.header("x-nearpath-path"),
        "tls; obstacle=bulk; node=b; then=http"
    );
}
