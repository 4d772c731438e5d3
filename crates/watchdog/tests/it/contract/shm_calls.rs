//! Calls through shared memory: a domain inside the test, and the watchdog as the endpoint of an
//! instance that speaks only HTTP.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming};
use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket, InstanceFault};
use nearpath_domain::{CallDestination, CallReply, CallResponse, endpoint, packet};
use nearpath_testkit::{eventually, free_addr, within};
use nearpath_types::{FunctionId, InstanceId, Reason};
use rustix::process::Signal;
use tokio::sync::{Notify, mpsc};
use tokio::task::{LocalSet, spawn_local};

use crate::contract::support::{
    WatchdogProcess, closable_listener, frames, full, send, start_hello_tenant, start_tenant, text,
};

/// A domain in which `caller` may call `callee`; the watchdog's instance is number 1 of `callee`.
struct ShmFixture {
    handle: DomainHandle,
    /// Until the watchdog runs.
    socket: Cell<Option<EndpointSocket>>,
    folder: tempfile::TempDir,
    _faults: mpsc::UnboundedReceiver<InstanceFault>,
}

fn callee_id() -> FunctionId {
    "callee".parse().unwrap()
}

impl ShmFixture {
    fn new() -> Self {
        let (handle, faults) = DomainHandle::start(DomainSettings::named("shop")).unwrap();
        handle.declare_edges([("caller".parse().unwrap(), callee_id())]);
        let folder = tempfile::tempdir().unwrap();
        let socket = EndpointSocket::listen_at(&folder.path().join("door")).unwrap();
        Self {
            handle,
            socket: Cell::new(Some(socket)),
            folder,
            _faults: faults,
        }
    }

    fn socket_path(&self) -> PathBuf {
        self.folder.path().join("door")
    }

    /// Starts a watchdog in front of `tenant` that joins the domain.
    fn start_watchdog(
        &self,
        tenant: std::net::SocketAddr,
        more: &[(&str, &str)],
    ) -> WatchdogProcess {
        let socket_path = self.socket_path();
        let base = [("NEARPATH_DISPATCH", socket_path.to_str().unwrap())];
        let watchdog = WatchdogProcess::in_http_mode(tenant, &[&base, more].concat());
        // As the node does it: the domain accepts once it can tell the watchdog from others.
        let socket = self.socket.take().expect("one watchdog");
        self.handle
            .admit_with_watchdog(InstanceId(1), callee_id(), watchdog.child.id(), socket);
        watchdog
    }

    async fn join_caller(&self) -> AsyncEndpoint {
        let (ours, theirs) = packet::socket_pair().unwrap();
        self.handle.admit_instance(
            InstanceId(2),
            "caller".parse().unwrap(),
            EndpointSocket::Connected(ours),
        );
        let settings = endpoint::EndpointSettings {
            serves: false,
            ..endpoint::EndpointSettings::default()
        };
        let (endpoint, driver) = AsyncEndpoint::join(theirs, settings).await.unwrap();
        spawn_local(driver);
        eventually("the watchdog is a party", async || {
            endpoint.has_function(&callee_id())
        })
        .await;
        endpoint
    }
}

fn start_call(
    endpoint: &AsyncEndpoint,
    fields: &[(&str, &[u8])],
    body: &'static str,
) -> nearpath_domain::endpoint::polled::CallFuture {
    let request = nearpath_domain::CallRequest {
        fields,
        body: Bytes::from_static(body.as_bytes()),
        ..Default::default()
    };
    endpoint
        .call(CallDestination::Function(&callee_id()), &request)
        .unwrap()
}

async fn call(endpoint: &AsyncEndpoint, fields: &[(&str, &[u8])], body: &'static str) -> CallReply {
    within(start_call(endpoint, fields, body)).await.unwrap()
}

fn reply_field(reply: &CallReply, name: &str) -> Option<String> {
    let all = reply.head_fields().flatten();
    all.filter(|field| field.name == name)
        .map(|field| String::from_utf8_lossy(field.value).into_owned())
        .next()
}

/// Starts a tenant whose response describes the request.
async fn start_describing_tenant() -> std::net::SocketAddr {
    start_tenant(async |request: Request<Incoming>| {
        let headers = request.headers();
        let header = |name: &str| {
            headers
                .get(name)
                .map_or("-", |value| value.to_str().unwrap())
                .to_owned()
        };
        let said = [
            request.method().to_string(),
            request.uri().to_string(),
            header("x-end"),
            header("connection"),
        ];
        let length = format!(
            "{:?} {}",
            request.body().size_hint().exact(),
            header("content-length")
        );
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let text = format!(
            "{} {length} {}",
            said.join(" "),
            String::from_utf8_lossy(&body)
        );
        Response::builder()
            .status(203)
            .header("x-own", "kept")
            .header("connection", "x-own-hop")
            .header("x-own-hop", "1")
            .body(full(&text))
            .unwrap()
    })
    .await
}

#[tokio::test]
async fn a_call_is_the_request_that_the_port_would_have_made_of_it() {
    let test = async {
        let domain = ShmFixture::new();
        let metrics = free_addr();
        let port = metrics.port().to_string();
        let watchdog = domain.start_watchdog(
            start_describing_tenant().await,
            &[("metrics_port", &port), ("log_callid", "true")],
        );
        let endpoint = domain.join_caller().await;
        let fields: &[(&str, &[u8])] = &[
            (":method", b"PUT"),
            (":path", b"/a/b?c=d"),
            ("x-end", b"1"),
            ("x-call-id", b"a-call"),
            ("connection", b"x-hop"),
            ("x-hop", b"1"),
            ("content-length", b"999"),
        ];
        let reply = call(&endpoint, fields, "bytes").await;
        assert_eq!((reply.status, reply.is_platform), (203, false));
        assert_eq!(reply.body, "PUT /a/b?c=d 1 - Some(5) 5 bytes");
        assert_eq!(
            (
                reply_field(&reply, "x-own").as_deref(),
                reply_field(&reply, "x-own-hop")
            ),
            (Some("kept"), None)
        );
        assert!(reply_field(&reply, "x-duration-seconds").is_some());
        drop(reply);
        watchdog.stdout.wait_for("PUT /a/b - 203 - ");
        let metrics_page = crate::contract::support::send(
            metrics,
            Request::get("/metrics").body(full("")).unwrap(),
        )
        .await
        .unwrap();
        let metrics_page = text(metrics_page).await.1;
        assert!(
            metrics_page.contains("http_requests_total{code=\"203\",method=\"put\"} 1"),
            "{metrics_page}"
        );
        let health = call(
            &endpoint,
            &[(":method", b"GET"), (":path", b"/_/health")],
            "",
        )
        .await;
        assert_eq!((health.status, &health.body[..]), (200, &b"OK"[..]));
        let odd = call(&endpoint, &[(":path", b"no path")], "").await;
        assert_eq!((odd.status, odd.is_platform), (400, true));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn max_inflight_counts_calls_over_http_and_shared_memory() {
    let test = async {
        let domain = ShmFixture::new();
        let go = Arc::new(Notify::new());
        let held = Arc::clone(&go);
        let slow = start_tenant(move |_| {
            let held = Arc::clone(&held);
            async move {
                held.notified().await;
                Response::new(full("done"))
            }
        });
        let watchdog = domain.start_watchdog(slow.await, &[("max_inflight", "1")]);
        let endpoint = domain.join_caller().await;
        let first = start_call(&endpoint, &[], "");
        eventually("it is full", async || {
            watchdog.get("/_/ready").await.0 == 429
        })
        .await;
        assert_eq!(watchdog.get("/").await.0, 429);
        let refused = call(&endpoint, &[], "").await;
        assert_eq!(
            (refused.status, refused.reason, refused.is_platform),
            (429, Reason::Overload as u16, true)
        );
        assert!(refused.did_not_run());
        go.notify_one();
        assert_eq!(within(first).await.unwrap().body, "done");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_call_that_no_tenant_took_may_be_sent_elsewhere() {
    let test = async {
        let domain = ShmFixture::new();
        let (listener, _place) = closable_listener();
        let _watchdog = domain.start_watchdog(listener.local_addr().unwrap(), &[]);
        let endpoint = domain.join_caller().await;
        drop(listener);
        let refused = call(&endpoint, &[], "").await;
        assert_eq!(
            (refused.status, refused.reason, refused.is_platform),
            (502, Reason::ConnectFailed as u16, true)
        );
        assert!(refused.did_not_run());
    };
    LocalSet::new().run_until(test).await;
}

/// Joins as an instance of `third`, which answers every call.
async fn join_third(domain: &ShmFixture) {
    let (ours, theirs) = packet::socket_pair().unwrap();
    let socket = EndpointSocket::Connected(ours);
    let function = "third".parse().unwrap();
    domain
        .handle
        .admit_instance(InstanceId(3), function, socket);
    let (third, driver) = AsyncEndpoint::join(theirs, endpoint::EndpointSettings::default())
        .await
        .unwrap();
    spawn_local(driver);
    third.announce_ready().unwrap();
    spawn_local(async move {
        while let Some(received) = third.next_incoming().await {
            received.send_response(CallResponse::ok("third"));
        }
    });
}

/// Starts a watchdog that may call `third`, and returns the channels of the domain once it is called itself.
async fn channels_with(domain: &ShmFixture, more: &[(&str, &str)]) -> (WatchdogProcess, usize) {
    let edges = ["caller callee", "callee third"].map(|edge| {
        let (caller, callee) = edge.split_once(' ').unwrap();
        (caller.parse().unwrap(), callee.parse().unwrap())
    });
    domain.handle.declare_edges(edges);
    join_third(domain).await;
    let watchdog = domain.start_watchdog(start_hello_tenant().await, more);
    domain.join_caller().await;
    (watchdog, domain.handle.read_usage().await.channels)
}

#[tokio::test]
async fn only_a_watchdog_that_takes_the_tenants_calls_has_channels_to_callees() {
    let test = async {
        let domain = ShmFixture::new();
        let (_watchdog, channels) = channels_with(&domain, &[]).await;
        assert_eq!(channels, 1, "the caller's own");

        let domain = ShmFixture::new();
        let (outbound, gateway) = (free_addr(), free_addr().to_string());
        let outbound_text = outbound.to_string();
        let variables = [
            ("NEARPATH_PICKUP", &*outbound_text),
            ("NEARPATH_GATEWAY", &*gateway),
            ("NEARPATH_EIP", "127.0.0.1"),
        ];
        let (_watchdog, channels) = channels_with(&domain, &variables).await;
        assert_eq!(channels, 2);
        let call = Request::get("/function/third")
            .header("host", "gateway")
            .header("x-nearpath-path", "?");
        let answer = send(outbound, call.body(full("")).unwrap()).await.unwrap();
        assert_eq!(answer.headers()["x-nearpath-path"], "shm");
        assert_eq!(text(answer).await, (200, "third".to_owned()));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn an_endpoint_of_the_tenant_takes_precedence_over_the_watchdog() {
    let test = async {
        let domain = ShmFixture::new();
        let _watchdog = domain.start_watchdog(
            start_tenant(async |_| Response::new(full("watchdog"))).await,
            &[],
        );
        let endpoint = domain.join_caller().await;
        assert_eq!(call(&endpoint, &[], "").await.body, "watchdog");
        let (own, driver) =
            AsyncEndpoint::dial(&domain.socket_path(), endpoint::EndpointSettings::default())
                .await
                .unwrap();
        let driver = spawn_local(driver);
        own.announce_ready().unwrap();
        let serving = spawn_local(async move {
            while let Some(received) = own.next_incoming().await {
                received.send_response(CallResponse::ok("handler"));
            }
        });
        eventually("the handler is asked", async || {
            call(&endpoint, &[], "").await.body == "handler"
        })
        .await;
        for _ in 0..50 {
            assert_eq!(
                call(&endpoint, &[], "").await.body,
                "handler",
                "and nobody else"
            );
        }
        serving.abort();
        driver.abort();
        eventually("the watchdog stands in again", async || {
            let request = nearpath_domain::CallRequest::default();
            let Ok(call) = endpoint.call(CallDestination::Function(&callee_id()), &request) else {
                return false;
            };
            within(call)
                .await
                .is_ok_and(|reply| reply.body == "watchdog")
        })
        .await;
    };
    LocalSet::new().run_until(test).await;
}

/// Counts when it is dropped.
struct CountOnDrop(Arc<AtomicUsize>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_tenants_call() {
    let test = async {
        let domain = ShmFixture::new();
        let (began, ended) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (notify, count) = (Arc::clone(&began), Arc::clone(&ended));
        let endless = start_tenant(move |_| {
            let (notify, ends) = (Arc::clone(&notify), CountOnDrop(Arc::clone(&count)));
            async move {
                notify.notify_one();
                let _ends = ends;
                std::future::pending::<Response<http_body_util::Full<Bytes>>>().await
            }
        });
        let _watchdog = domain.start_watchdog(endless.await, &[]);
        let endpoint = domain.join_caller().await;
        let asked = start_call(&endpoint, &[], "");
        within(began.notified()).await;
        drop(asked);
        eventually("the tenant's call has ended", async || {
            ended.load(Ordering::SeqCst) == 1
        })
        .await;
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn an_event_stream_comes_as_it_is_made_and_ends_with_its_caller() {
    let test = async {
        let domain = ShmFixture::new();
        let (events, body) = frames();
        let body = Arc::new(std::sync::Mutex::new(Some(body)));
        let streaming = start_tenant(move |_| {
            let body = body.lock().unwrap().take().unwrap();
            async {
                Response::builder()
                    .header("content-type", "text/event-stream")
                    .body(body)
                    .unwrap()
            }
        });
        let _watchdog = domain.start_watchdog(streaming.await, &[]);
        let (ours, theirs) = packet::socket_pair().unwrap();
        drop(domain.join_caller().await); // the watchdog is there
        domain.handle.admit_instance(
            InstanceId(3),
            "caller".parse().unwrap(),
            EndpointSocket::Connected(ours),
        );
        let settings = endpoint::EndpointSettings {
            serves: false,
            stream_bodies: true,
            ..endpoint::EndpointSettings::default()
        };
        let (endpoint, driver) = AsyncEndpoint::join(theirs, settings).await.unwrap();
        spawn_local(driver);
        eventually("known", async || endpoint.has_function(&callee_id())).await;
        let mut reply = call(&endpoint, &[], "").await;
        let rest = reply
            .reader
            .take()
            .expect("the head comes before any event");
        for event in ["one", "two"] {
            events
                .send(Ok(Frame::data(Bytes::from(event))))
                .await
                .unwrap();
            assert_eq!(within(rest.next_part()).await.unwrap().unwrap(), event);
        }
        drop(rest);
        within(events.closed()).await;
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_drain_finishes_calls_and_refuses_later_ones() {
    let test = async {
        let domain = ShmFixture::new();
        let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (notify, held) = (Arc::clone(&began), Arc::clone(&go));
        let slow = start_tenant(move |_| {
            let (notify, held) = (Arc::clone(&notify), Arc::clone(&held));
            async move {
                notify.notify_one();
                held.notified().await;
                Response::new(full("done"))
            }
        });
        let mut watchdog = domain.start_watchdog(slow.await, &[]);
        let endpoint = domain.join_caller().await;
        let open = start_call(&endpoint, &[], "");
        within(began.notified()).await;
        watchdog.send_signal(Signal::TERM);
        watchdog.stderr.wait_for("stopping");
        eventually("later ones are told", async || {
            let asked = start_call(&endpoint, &[(":path", b"/_/health")], "");
            let reply = within(asked).await.unwrap();
            reply.did_not_run()
                && reply.reason == Reason::Draining as u16
                && reply.body.ends_with(b"stops\n")
        })
        .await;
        go.notify_one();
        assert_eq!(within(open).await.unwrap().body, "done");
        assert!(watchdog.wait_exit().await.success());
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_call_has_a_deadline_through_memory_too() {
    let test = async {
        let domain = ShmFixture::new();
        let endless = start_tenant(async |_| {
            std::future::pending::<Response<http_body_util::Full<Bytes>>>().await
        });
        let _watchdog = domain.start_watchdog(endless.await, &[("exec_timeout", "200ms")]);
        let endpoint = domain.join_caller().await;
        let reply = call(&endpoint, &[], "").await;
        assert_eq!(
            (reply.status, reply.reason, reply.is_platform),
            (504, Reason::ExecTimeout as u16, true)
        );
        assert!(!reply.did_not_run());
    };
    LocalSet::new().run_until(test).await;
}
