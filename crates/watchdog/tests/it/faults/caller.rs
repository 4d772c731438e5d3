//! A gateway as far as calling goes: one UDP socket, sessions, and calls whose answers are checked byte by byte.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use nearpath_testkit::lab::Node;
use nearpath_wire::early::Sessions;
use nearpath_wire::identity::Trust;
use nearpath_wire::quic::{CallError, DialError, Dialer, Early, Line};
use quinn::{ClientConfig, Endpoint, EndpointConfig, TokioRuntime};

use crate::faults::handler::NUMBER;

/// How long connecting may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// See the module's text.
pub(crate) struct Caller {
    pub(crate) endpoint: Endpoint,
    pub(crate) config: ClientConfig,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) trust: Trust,
    pub(crate) worker: SocketAddr,
    pub(crate) name: String,
    pub(crate) next: Cell<u32>,
}

/// A socket on that machine, on a port of its own.
pub(crate) fn socket(node: &Node) -> UdpSocket {
    node.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap()
}

/// A caller's end on that machine.
pub(crate) fn endpoint(node: &Node) -> Endpoint {
    Endpoint::new(EndpointConfig::default(), None, socket(node), Arc::new(TokioRuntime)).unwrap()
}

/// A body in which every stretch is different.
pub(crate) fn body(length: usize, number: u32) -> Bytes {
    let mut state = u64::from(number) + 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

impl Caller {
    pub(crate) async fn try_dial(&self, limit: Duration) -> Result<Line, DialError> {
        let dialer = Dialer::new(self.endpoint.clone(), self.config.clone(), self.trust.clone());
        dialer.dial(self.worker, &self.name, limit).await
    }

    pub(crate) async fn dial(&self) -> Line {
        self.try_dial(LIMIT).await.unwrap()
    }

    /// A POST with a number of its own, and that number.
    pub(crate) fn post(&self, path: &str, length: usize) -> (u32, Request<Bytes>) {
        let number = self.next.replace(self.next.get() + 1);
        let request = Request::post(path).header(NUMBER, number).body(body(length, number)).unwrap();
        (number, request)
    }

    /// Calls, and compares the whole answer with what was sent.
    pub(crate) async fn call(&self, line: &Line, length: usize) -> Result<u32, CallError> {
        let (number, request) = self.post("/", length);
        check(line, number, request).await
    }
}

/// Makes a call whose answer is its own body.
pub(crate) async fn check(line: &Line, number: u32, request: Request<Bytes>) -> Result<u32, CallError> {
    let sent = request.body().clone();
    let answer = line.call_whole(request, Early::Allowed).await?;
    assert_eq!(answer.status(), 200, "call {number}");
    let got = answer.into_body().collect().await?.to_bytes();
    assert!(got == sent, "call {number}: {} bytes came back of {}, or others", got.len(), sent.len());
    Ok(number)
}
