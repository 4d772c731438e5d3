//! Inputs and outputs of the [`CoapEndpoint`](super::CoapEndpoint), and its state per request.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use coap_lite::ResponseType;

use crate::coap::blockwise::{MemoryCost, TRANSFER_OVERHEAD_BYTES};
use crate::coap::message::{BlockOption, ResourceRequest};

/// An effect that the task around the endpoint carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::coap) enum CoapEffect {
    Send(SocketAddr, Vec<u8>),
    /// Call a function, then [`CoapEndpoint::complete_call`] with this number.
    Call(u64, SocketAddr, ResourceRequest, Bytes),
    Count(CoapEvent),
}

/// An event to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coap) enum CoapEvent {
    Malformed,
    Duplicate,
    Challenged,
    Refused,
    Retransmitted,
    Notified,
}

/// A response to a client.
#[derive(Debug, Clone)]
pub(in crate::coap) struct CoapResponse {
    pub code: ResponseType,
    pub format: Option<u16>,
    pub body: Bytes,
}

impl CoapResponse {
    pub(super) fn without_body(code: ResponseType) -> Self {
        Self {
            code,
            format: None,
            body: Bytes::new(),
        }
    }

    pub(super) fn is_success(&self) -> bool {
        !self.code.is_error()
    }

    pub(super) fn etag(&self) -> Vec<u8> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        // Fixed keys: equal bodies need equal tags within this process, and secrecy is not needed.
        let mut hash = DefaultHasher::new();
        (&self.body, self.format).hash(&mut hash);
        hash.finish().to_be_bytes().to_vec()
    }
}

impl MemoryCost for CoapResponse {
    fn cost(&self) -> usize {
        self.body.len() + TRANSFER_OVERHEAD_BYTES
    }
}

/// A request that waits for its response.
#[derive(Debug, Clone)]
pub(super) struct PendingRequest {
    pub from: SocketAddr,
    pub message: u16,
    pub token: Vec<u8>,
    pub confirmable: bool,
    /// An empty acknowledgement was sent, or is due at `acknowledge_at`.
    pub acknowledged: bool,
    pub acknowledge_at: Instant,
    /// Bytes of the request, which bound a response to an unproven address.
    pub size: usize,
    pub resource: ResourceRequest,
    pub block1: Option<BlockOption>,
    pub block2: Option<BlockOption>,
    pub observe: bool,
}
