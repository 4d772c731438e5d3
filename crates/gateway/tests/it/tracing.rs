//! The trace of a request that goes through shared memory.

use std::net::{Ipv4Addr, SocketAddr};

use http::Request;
use nearpath_domain::endpoint::{self, blocking::BlockingEndpoint};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_domain::{CallResponse, packet};
use nearpath_testkit::eventually;
use nearpath_types::{FunctionPolicy, InstanceId};

use crate::fixture::{TestGateway, full_body, send_and_collect};

/// Starts an instance that answers with the trace of the envelope and the one to forward.
fn start_tracing_instance(domain: &DomainHandle) {
    let (ours, theirs) = packet::socket_pair().unwrap();
    domain.admit_instance(
        InstanceId(1),
        "traced".parse().unwrap(),
        EndpointSocket::Connected(ours),
    );
    std::thread::spawn(move || {
        let mut endpoint =
            BlockingEndpoint::join(theirs, endpoint::EndpointSettings::default()).unwrap();
        let _ = endpoint.serve_calls(|_, incoming| {
            CallResponse::ok(format!(
                "{:x?} {:?}",
                incoming.trace[0],
                incoming.traceparent()
            ))
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_goes_through_memory() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let (domain, _faults) = DomainHandle::start(DomainSettings::named("shop.openfaas-fn")).unwrap();
    start_tracing_instance(&domain);
    let fixture = TestGateway::with_domain(domain.clone());
    let unused_addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 1)); // it only names the instance
    fixture.publish_functions(&[(
        "traced",
        FunctionPolicy {
            chain: Some("shop".into()),
            ..FunctionPolicy::default()
        },
        &[unused_addr],
    )]);
    let call = async |trace: &str| {
        let request = Request::get("/function/traced")
            .header("traceparent", trace)
            .header("x-nearpath-path", "?");
        send_and_collect(fixture.public, request.body(full_body("")).unwrap()).await
    };
    let reached_through_memory = async || {
        let answers = futures_util::future::join_all((0..16).map(|_| call(TRACE))).await;
        answers
            .iter()
            .all(|answer| answer.header("x-nearpath-path") == "shm")
    };
    eventually(
        "both threads reach it through memory",
        reached_through_memory,
    )
    .await;
    assert_eq!(
        call(TRACE).await.body,
        format!("a Some({TRACE:?})"),
        "in the envelope, and as it came"
    );
    assert_eq!(
        call("00-1-2-01").await.body,
        "0 None",
        "what is no trace is none in the envelope"
    );
    domain.stop().await;
}
