//! Calls through shared memory: a domain inside the test, the watchdog as the party of an instance that knows only HTTP.

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

use crate::contract::support::{Watchdog, frames, full, leaving, tenant, text};

/// A domain in which `caller` may call `callee`; the watchdog's instance is number 1 of `callee`.
struct Domain {
    hub: DomainHandle,
    folder: tempfile::TempDir,
    _faults: mpsc::UnboundedReceiver<InstanceFault>,
}

fn callee() -> FunctionId {
    "callee".parse().unwrap()
}

impl Domain {
    fn new() -> Self {
        let (hub, faults) = DomainHandle::start(DomainSettings::named("shop")).unwrap();
        hub.declare_edges([("caller".parse().unwrap(), callee())]);
        let folder = tempfile::tempdir().unwrap();
        hub.admit_instance(InstanceId(1), callee(), EndpointSocket::listen_at(&folder.path().join("door")).unwrap());
        Self { hub, folder, _faults: faults }
    }

    fn door(&self) -> PathBuf {
        self.folder.path().join("door")
    }

    /// A watchdog in front of `tenant` that knows the door.
    fn watchdog(&self, tenant: std::net::SocketAddr, more: &[(&str, &str)]) -> Watchdog {
        let door = self.door();
        let base = [("NEARPATH_DISPATCH", door.to_str().unwrap())];
        Watchdog::http(tenant, &[&base, more].concat())
    }

    async fn caller(&self) -> AsyncEndpoint {
        let (ours, theirs) = packet::socket_pair().unwrap();
        self.hub.admit_instance(InstanceId(2), "caller".parse().unwrap(), EndpointSocket::Connected(ours));
        let settings = endpoint::EndpointSettings { serves: false, ..endpoint::EndpointSettings::default() };
        let (post, driver) = AsyncEndpoint::join(theirs, settings).await.unwrap();
        spawn_local(driver);
        eventually("the watchdog is a party", async || post.has_function(&callee())).await;
        post
    }
}

fn ask(
    post: &AsyncEndpoint,
    fields: &[(&str, &[u8])],
    body: &'static str,
) -> nearpath_domain::endpoint::polled::CallFuture {
    let request =
        nearpath_domain::CallRequest { fields, body: Bytes::from_static(body.as_bytes()), ..Default::default() };
    post.call(CallDestination::Function(&callee()), &request).unwrap()
}

async fn call(post: &AsyncEndpoint, fields: &[(&str, &[u8])], body: &'static str) -> CallReply {
    within(ask(post, fields, body)).await.unwrap()
}

fn field(reply: &CallReply, name: &str) -> Option<String> {
    let all = reply.head_fields().flatten();
    all.filter(|field| field.name == name).map(|field| String::from_utf8_lossy(field.value).into_owned()).next()
}

/// A tenant that tells what it was asked.
async fn telling() -> std::net::SocketAddr {
    tenant(async |request: Request<Incoming>| {
        let headers = request.headers();
        let header = |name: &str| headers.get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
        let said = [request.method().to_string(), request.uri().to_string(), header("x-end"), header("connection")];
        let length = format!("{:?} {}", request.body().size_hint().exact(), header("content-length"));
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let text = format!("{} {length} {}", said.join(" "), String::from_utf8_lossy(&body));
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
    let walk = async {
        let domain = Domain::new();
        let metrics = free_addr();
        let port = metrics.port().to_string();
        let watchdog = domain.watchdog(telling().await, &[("metrics_port", &port), ("log_callid", "true")]);
        let post = domain.caller().await;
        let fields: &[(&str, &[u8])] = &[
            (":method", b"PUT"),
            (":path", b"/a/b?c=d"),
            ("x-end", b"1"),
            ("x-call-id", b"a-call"),
            ("connection", b"x-hop"),
            ("x-hop", b"1"),
            ("content-length", b"999"),
        ];
        let reply = call(&post, fields, "bytes").await;
        assert_eq!((reply.status, reply.is_platform), (203, false));
        assert_eq!(reply.body, "PUT /a/b?c=d 1 - Some(5) 5 bytes");
        assert_eq!((field(&reply, "x-own").as_deref(), field(&reply, "x-own-hop")), (Some("kept"), None));
        assert!(field(&reply, "x-duration-seconds").is_some());
        drop(reply);
        watchdog.stdout.find("PUT /a/b - 203 - ");
        let shown =
            crate::contract::support::send(metrics, Request::get("/metrics").body(full("")).unwrap()).await.unwrap();
        let shown = text(shown).await.1;
        assert!(shown.contains("http_requests_total{code=\"203\",method=\"put\"} 1"), "{shown}");
        let health = call(&post, &[(":method", b"GET"), (":path", b"/_/health")], "").await;
        assert_eq!((health.status, &health.body[..]), (200, &b"OK"[..]));
        let odd = call(&post, &[(":path", b"no path")], "").await;
        assert_eq!((odd.status, odd.is_platform), (400, true));
    };
    LocalSet::new().run_until(walk).await;
}

#[tokio::test]
async fn max_inflight_counts_both_ways_in() {
    let walk = async {
        let domain = Domain::new();
        let go = Arc::new(Notify::new());
        let held = Arc::clone(&go);
        let slow = tenant(move |_| {
            let held = Arc::clone(&held);
            async move {
                held.notified().await;
                Response::new(full("done"))
            }
        });
        let watchdog = domain.watchdog(slow.await, &[("max_inflight", "1")]);
        let post = domain.caller().await;
        let first = ask(&post, &[], "");
        eventually("it is full", async || watchdog.get("/_/ready").await.0 == 429).await;
        assert_eq!(watchdog.get("/").await.0, 429);
        let refused = call(&post, &[], "").await;
        assert_eq!((refused.status, refused.reason, refused.is_platform), (429, Reason::Overload as u16, true));
        assert!(refused.did_not_run());
        go.notify_one();
        assert_eq!(within(first).await.unwrap().body, "done");
    };
    LocalSet::new().run_until(walk).await;
}

#[tokio::test]
async fn a_call_that_no_tenant_took_may_go_another_way() {
    let walk = async {
        let domain = Domain::new();
        let (listener, _place) = leaving();
        let _watchdog = domain.watchdog(listener.local_addr().unwrap(), &[]);
        let post = domain.caller().await;
        drop(listener);
        let refused = call(&post, &[], "").await;
        assert_eq!((refused.status, refused.reason, refused.is_platform), (502, Reason::ConnectFailed as u16, true));
        assert!(refused.did_not_run());
    };
    LocalSet::new().run_until(walk).await;
}

#[tokio::test]
async fn a_party_of_the_tenants_own_takes_precedence_while_it_is_there() {
    let walk = async {
        let domain = Domain::new();
        let _watchdog = domain.watchdog(tenant(async |_| Response::new(full("watchdog"))).await, &[]);
        let post = domain.caller().await;
        assert_eq!(call(&post, &[], "").await.body, "watchdog");
        let (own, driver) = AsyncEndpoint::dial(&domain.door(), endpoint::EndpointSettings::default()).await.unwrap();
        let driver = spawn_local(driver);
        own.announce_ready().unwrap();
        let serving = spawn_local(async move {
            while let Some(received) = own.next_incoming().await {
                received.send_response(CallResponse::ok("handler"));
            }
        });
        eventually("the handler is asked", async || call(&post, &[], "").await.body == "handler").await;
        for _ in 0..50 {
            assert_eq!(call(&post, &[], "").await.body, "handler", "and nobody else");
        }
        serving.abort();
        driver.abort();
        eventually("the watchdog stands in again", async || {
            let request = nearpath_domain::CallRequest::default();
            let Ok(call) = post.call(CallDestination::Function(&callee()), &request) else { return false };
            within(call).await.is_ok_and(|reply| reply.body == "watchdog")
        })
        .await;
    };
    LocalSet::new().run_until(walk).await;
}

/// Says when it is dropped.
struct Ends(Arc<AtomicUsize>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_tenants_call() {
    let walk = async {
        let domain = Domain::new();
        let (began, ended) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (tell, count) = (Arc::clone(&began), Arc::clone(&ended));
        let endless = tenant(move |_| {
            let (tell, ends) = (Arc::clone(&tell), Ends(Arc::clone(&count)));
            async move {
                tell.notify_one();
                let _ends = ends;
                std::future::pending::<Response<http_body_util::Full<Bytes>>>().await
            }
        });
        let _watchdog = domain.watchdog(endless.await, &[]);
        let post = domain.caller().await;
        let asked = ask(&post, &[], "");
        within(began.notified()).await;
        drop(asked);
        eventually("the tenant's call has ended", async || ended.load(Ordering::SeqCst) == 1).await;
    };
    LocalSet::new().run_until(walk).await;
}

#[tokio::test]
async fn an_event_stream_comes_as_it_is_made_and_ends_with_its_caller() {
    let walk = async {
        let domain = Domain::new();
        let (events, body) = frames();
        let body = Arc::new(std::sync::Mutex::new(Some(body)));
        let streaming = tenant(move |_| {
            let body = body.lock().unwrap().take().unwrap();
            async { Response::builder().header("content-type", "text/event-stream").body(body).unwrap() }
        });
        let _watchdog = domain.watchdog(streaming.await, &[]);
        let (ours, theirs) = packet::socket_pair().unwrap();
        drop(domain.caller().await); // the watchdog is there
        domain.hub.admit_instance(InstanceId(3), "caller".parse().unwrap(), EndpointSocket::Connected(ours));
        let settings =
            endpoint::EndpointSettings { serves: false, stream_bodies: true, ..endpoint::EndpointSettings::default() };
        let (post, driver) = AsyncEndpoint::join(theirs, settings).await.unwrap();
        spawn_local(driver);
        eventually("known", async || post.has_function(&callee())).await;
        let mut reply = call(&post, &[], "").await;
        let rest = reply.reader.take().expect("the head comes before any event");
        for event in ["one", "two"] {
            events.send(Ok(Frame::data(Bytes::from(event)))).await.unwrap();
            assert_eq!(within(rest.next_part()).await.unwrap().unwrap(), event);
        }
        drop(rest);
        within(events.closed()).await;
    };
    LocalSet::new().run_until(walk).await;
}

#[tokio::test]
async fn a_drain_finishes_calls_and_tells_later_ones() {
    let walk = async {
        let domain = Domain::new();
        let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, held) = (Arc::clone(&began), Arc::clone(&go));
        let slow = tenant(move |_| {
            let (tell, held) = (Arc::clone(&tell), Arc::clone(&held));
            async move {
                tell.notify_one();
                held.notified().await;
                Response::new(full("done"))
            }
        });
        let mut watchdog = domain.watchdog(slow.await, &[]);
        let post = domain.caller().await;
        let open = ask(&post, &[], "");
        within(began.notified()).await;
        watchdog.signal(Signal::TERM);
        watchdog.stderr.find("stopping");
        eventually("later ones are told", async || {
            let asked = ask(&post, &[(":path", b"/_/health")], "");
            let reply = within(asked).await.unwrap();
            reply.did_not_run() && reply.reason == Reason::Draining as u16 && reply.body.ends_with(b"stops\n")
        })
        .await;
        go.notify_one();
        assert_eq!(within(open).await.unwrap().body, "done");
        assert!(watchdog.ended().await.success());
    };
    LocalSet::new().run_until(walk).await;
}

#[tokio::test]
async fn a_call_has_a_deadline_through_memory_too() {
    let walk = async {
        let domain = Domain::new();
        let endless = tenant(async |_| std::future::pending::<Response<http_body_util::Full<Bytes>>>().await);
        let _watchdog = domain.watchdog(endless.await, &[("exec_timeout", "200ms")]);
        let post = domain.caller().await;
        let reply = call(&post, &[], "").await;
        assert_eq!((reply.status, reply.reason, reply.is_platform), (504, Reason::ExecTimeout as u16, true));
        assert!(!reply.did_not_run());
    };
    LocalSet::new().run_until(walk).await;
}
