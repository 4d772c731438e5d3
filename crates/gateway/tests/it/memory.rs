//! A function that takes calls through shared memory, in a domain of this test's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use nearpath_daemon::{drain, metrics::Registry};
use nearpath_domain::hub::{Door, Hub, Settings};
use nearpath_domain::post::{self, blocking::Post};
use nearpath_domain::{Answer, packet};
use nearpath_gateway::{Control, Gateway, Listener, NoControl, Zone};
use nearpath_testkit::eventually;
use nearpath_types::{FunctionId, InstanceId, Policy, Snapshot};
use nearpath_wire::Body;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::house::{ask, full, route};

struct OneDomain(Hub);

impl Control for OneDomain {
    fn wake(&self, _: &FunctionId) {}

    fn admin(&self, request: Request<Incoming>) -> BoxFuture<'static, Response<Body>> {
        NoControl.admin(request)
    }

    fn domains(&self) -> Option<UnboundedReceiver<OwnedFd>> {
        let (give, take) = unbounded_channel();
        give.send(self.0.gateway_socket().unwrap()).unwrap();
        Some(take)
    }
}

/// An instance that answers with what it was told of the trace: the envelope's, and the one to go on with.
fn tracing_instance(hub: &Hub, instance: InstanceId) {
    let (ours, theirs) = packet::pair().unwrap();
    hub.admit(instance, "traced".parse().unwrap(), Door::Connected(ours));
    std::thread::spawn(move || {
        let mut post = Post::join(theirs, post::Settings::default()).unwrap();
        let _ = post.serve(|_, incoming| {
            let text = format!("{:x?} {:?}", incoming.trace[0], incoming.traceparent());
            Answer::ok(text)
        });
    });
}

/// A gateway whose one function is reached through memory alone; where it listens.
async fn gateway(hub: &Hub) -> (SocketAddr, drain::Trigger, nearpath_gateway::Serving) {
    let nowhere: SocketAddr = (Ipv4Addr::LOCALHOST, 1).into();
    tracing_instance(hub, InstanceId(u64::from(nowhere.port())));
    let policy = Policy { chain: Some("shop".into()), ..Policy::default() };
    let gateway =
        Gateway::new(nearpath_gateway::Settings::default(), Arc::new(OneDomain(hub.clone())), &Registry::default());
    gateway.publish(&Snapshot { version: 1, functions: vec![route("traced", policy, &[nowhere])] });
    let sockets = nearpath_wire::bind((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
    let at = sockets[0].local_addr().unwrap();
    let (trigger, watch) = drain::channel();
    let listeners = vec![Listener { zone: Zone::Public, tls: None, sockets }];
    (at, trigger, gateway.serve(listeners, 1, Arc::new(|| Ok(())), watch).unwrap())
}

#[tokio::test]
async fn the_trace_goes_through_memory() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let (hub, _faults) = Hub::start(Settings::named("shop.openfaas-fn")).unwrap();
    let (at, trigger, serving) = gateway(&hub).await;
    let call = async |trace: &str| {
        let request = Request::get("/function/traced").header("traceparent", trace).header("x-nearpath-path", "?");
        ask(at, request.body(full("")).unwrap()).await
    };
    eventually("it is reached through memory", async || call(TRACE).await.header("x-nearpath-path") == "shm").await;
    assert_eq!(call(TRACE).await.body, format!("a Some({TRACE:?})"), "in the envelope, and as it came");
    assert_eq!(call("00-1-2-01").await.body, "0 None", "what is no trace is none in the envelope");
    let begun = tokio::spawn(trigger.drain());
    hub.stop().await;
    begun.await.unwrap();
    tokio::task::spawn_blocking(|| serving.join()).await.unwrap().unwrap();
}
