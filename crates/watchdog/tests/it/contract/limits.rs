//! Health, readiness, `max_inflight`, metrics.

use std::sync::Arc;

use http::{Request, Response};
use nearpath_testkit::{eventually, free_addr, within};
use tokio::sync::Semaphore;

use crate::contract::support::{
    WatchdogProcess, full, send, start_hello_tenant, start_tenant, text,
};

/// A tenant whose calls end only when permitted, and the permits.
async fn start_held_tenant() -> (std::net::SocketAddr, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let inner = Arc::clone(&gate);
    let answer = move |_| {
        let gate = Arc::clone(&inner);
        async move {
            gate.acquire().await.unwrap().forget();
            Response::new(full("done"))
        }
    };
    (start_tenant(answer).await, gate)
}

#[tokio::test]
async fn health_and_ready() {
    let watchdog = WatchdogProcess::in_http_mode(start_hello_tenant().await, &[]);
    assert_eq!(watchdog.get("/_/health").await, (200, "OK".to_owned()));
    eventually("ready", async || {
        watchdog.get("/_/ready").await == (200, "OK".to_owned())
    })
    .await;
}

#[tokio::test]
async fn exactly_max_inflight_pass() {
    let (addr, gate) = start_held_tenant().await;
    let watchdog =
        WatchdogProcess::in_http_mode(addr, &[("max_inflight", "3"), ("log_callid", "true")]);
    eventually("ready", async || watchdog.get("/_/ready").await.0 == 200).await;
    let target = watchdog.addr;
    let calls: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn(async move {
                send(target, Request::get("/").body(full("")).unwrap())
                    .await
                    .unwrap()
            })
        })
        .collect();
    let statuses = async {
        let mut refused = 0;
        let mut passed = 0;
        for call in calls {
            let response = call.await.unwrap();
            match response.status().as_u16() {
                200 => passed += 1,
                429 => {
                    assert_eq!(response.headers()["retry-after"], "1");
                    assert_eq!(response.headers()["x-nearpath-reason"], "overload");
                    refused += 1;
                }
                other => panic!("{other}"),
            }
        }
        (passed, refused)
    };
    let release = async {
        eventually("full", async || watchdog.get("/_/ready").await.0 == 429).await;
        // All 17 refusals come while the three are held: 20 calls, 3 places, no release before.
        eventually("17 refused", async || refused_calls(&watchdog).await >= 17).await;
        gate.add_permits(3);
    };
    let (counts, ()) = within(async { tokio::join!(statuses, release) }).await;
    assert_eq!(counts, (3, 17));
    gate.add_permits(1);
    assert_eq!(watchdog.get("/").await.0, 200, "places are free again");
}

/// Returns the number of refusals in the log.
async fn refused_calls(watchdog: &WatchdogProcess) -> usize {
    let _ = watchdog.get("/_/health").await; // a round trip, so that this can only wait, never hang
    watchdog.stdout.joined_lines().matches(" - 429 - ").count()
}

#[tokio::test]
async fn ready_path_asks_the_tenant_but_the_limit_comes_first() {
    let answer = async |request: http::Request<hyper::body::Incoming>| match request.uri().path() {
        "/warm" => Response::builder()
            .status(418)
            .body(full("warming up"))
            .unwrap(),
        _ => std::future::pending().await,
    };
    let watchdog = WatchdogProcess::in_http_mode(
        start_tenant(answer).await,
        &[("ready_path", "/warm"), ("max_inflight", "1")],
    );
    eventually("asked", async || {
        watchdog.get("/_/ready").await == (418, "warming up".to_owned())
    })
    .await;
    let target = watchdog.addr;
    let call =
        tokio::spawn(async move { send(target, Request::get("/").body(full("")).unwrap()).await });
    eventually("full", async || watchdog.get("/_/ready").await.0 == 429).await;
    call.abort();
    eventually("free", async || watchdog.get("/_/ready").await.0 == 418).await;
}

#[tokio::test]
async fn metrics_have_their_own_port() {
    let metrics = free_addr();
    let port = metrics.port().to_string();
    let watchdog = WatchdogProcess::start(&[("fprocess", "cat"), ("metrics_port", &port)]);
    assert_eq!(watchdog.post("/", "x").await.0, 200);
    assert_eq!(watchdog.get("/_/health").await.0, 200);
    let ask = async || {
        text(
            send(metrics, Request::get("/metrics").body(full("")).unwrap())
                .await
                .unwrap(),
        )
        .await
        .1
    };
    let line = "http_requests_total{code=\"200\",method=\"post\"} 1";
    eventually("counted", async || ask().await.contains(line)).await;
    let all = ask().await;
    assert!(all.contains("http_requests_in_flight 0"), "{all}");
    assert!(
        all.contains("http_request_duration_seconds_bucket"),
        "{all}"
    );
    assert!(
        !all.contains("method=\"get\""),
        "health checks are not calls: {all}"
    );
}
