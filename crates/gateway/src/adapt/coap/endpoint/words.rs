//! What goes in and out of an [`Endpoint`](super::Endpoint), and what it remembers of a request.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use coap_lite::ResponseType;

use crate::adapt::coap::message::{Block, Wanted};
use crate::adapt::coap::transfers::{OVERHEAD, Weight};

/// What the rim has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::adapt::coap) enum Effect {
    Send(SocketAddr, Vec<u8>),
    /// Call a function, then [`Endpoint::answered`] with this number.
    Call(u64, SocketAddr, Wanted, Bytes),
    Count(Counted),
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::adapt::coap) enum Counted {
    Malformed,
    Duplicate,
    Challenged,
    Refused,
    Resent,
    Notified,
}

/// A function's answer.
#[derive(Debug, Clone)]
pub(in crate::adapt::coap) struct Answer {
    pub code: ResponseType,
    pub format: Option<u16>,
    pub body: Bytes,
}

impl Answer {
    pub(super) fn bare(code: ResponseType) -> Self {
        Self { code, format: None, body: Bytes::new() }
    }

    pub(super) fn is_good(&self) -> bool {
        !self.code.is_error()
    }

    pub(super) fn etag(&self) -> Vec<u8> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hash = DefaultHasher::new();
        (&self.body, self.format).hash(&mut hash);
        hash.finish().to_be_bytes().to_vec()
    }
}

impl Weight for Answer {
    fn weight(&self) -> usize {
        self.body.len() + OVERHEAD
    }
}

/// Where an answer has to go.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub from: SocketAddr,
    pub message: u16,
    pub token: Vec<u8>,
    pub confirmable: bool,
    /// The client was told to wait, or is to be told at that time.
    pub acknowledged: bool,
    pub acknowledge: Instant,
    /// Bytes of the request: what bounds an answer to an address that is not proven.
    pub size: usize,
    pub wanted: Wanted,
    pub block1: Option<Block>,
    pub block2: Option<Block>,
    pub observe: bool,
}
