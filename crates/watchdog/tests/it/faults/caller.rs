//! Caller like a gateway: one UDP socket, sessions, and calls whose responses are checked byte by
//! byte.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use nearpath_testkit::lab::LabNode;
use nearpath_wire::identity::Trust;
use nearpath_wire::quic::{CallerConnection, Dialer, EarlyData, QuicCallError, QuicDialError};
use nearpath_wire::zero_rtt::CallerSessions;
use quinn::{ClientConfig, Endpoint, EndpointConfig, TokioRuntime};

use crate::faults::handler::NUMBER_HEADER;

/// Time limit of connecting.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Caller with one UDP socket and its sessions.
pub(crate) struct FaultCaller {
    pub(crate) endpoint: Endpoint,
    pub(crate) config: ClientConfig,
    pub(crate) sessions: Arc<CallerSessions>,
    pub(crate) trust: Trust,
    pub(crate) worker: SocketAddr,
    pub(crate) name: String,
    pub(crate) next_number: Cell<u32>,
}

/// A socket on that machine, on a port of its own.
pub(crate) fn bind_socket(node: &LabNode) -> UdpSocket {
    node.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))
        .unwrap()
}

/// A caller's end on that machine.
pub(crate) fn new_endpoint(node: &LabNode) -> Endpoint {
    Endpoint::new(
        EndpointConfig::default(),
        None,
        bind_socket(node),
        Arc::new(TokioRuntime),
    )
    .unwrap()
}

/// A body in which every stretch is different.
pub(crate) fn random_body(length: usize, number: u32) -> Bytes {
    let mut state = u64::from(number) + 1;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

impl FaultCaller {
    pub(crate) async fn try_dial(
        &self,
        limit: Duration,
    ) -> Result<CallerConnection, QuicDialError> {
        let dialer = Dialer::new(
            self.endpoint.clone(),
            self.config.clone(),
            self.trust.clone(),
        );
        dialer.dial_worker(self.worker, &self.name, limit).await
    }

    pub(crate) async fn dial(&self) -> CallerConnection {
        self.try_dial(DIAL_TIMEOUT).await.unwrap()
    }

    /// A POST with a number of its own, and that number.
    pub(crate) fn post(&self, path: &str, length: usize) -> (u32, Request<Bytes>) {
        let number = self.next_number.replace(self.next_number.get() + 1);
        let request = Request::post(path)
            .header(NUMBER_HEADER, number)
            .body(random_body(length, number))
            .unwrap();
        (number, request)
    }

    /// Calls, and compares the whole answer with what was sent.
    pub(crate) async fn call(
        &self,
        line: &CallerConnection,
        length: usize,
    ) -> Result<u32, QuicCallError> {
        let (number, request) = self.post("/", length);
        check_echo(line, number, request).await
    }
}

/// Makes a call whose answer is its own body.
pub(crate) async fn check_echo(
    line: &CallerConnection,
    number: u32,
    request: Request<Bytes>,
) -> Result<u32, QuicCallError> {
    let sent = request.body().clone();
    let answer = line.call_buffered(request, EarlyData::Allowed).await?;
    assert_eq!(answer.status(), 200, "call {number}");
    let got = answer.into_body().collect().await?.to_bytes();
    assert!(
        got == sent,
        "call {number}: {} bytes came back of {}, or others",
        got.len(),
        sent.len()
    );
    Ok(number)
}
