//! What a decision rests on.

use nearpath_types::policy::Transport;

/// Everything about one call to one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What lies between the two.
    pub edge: Edge,
    /// What carries the call where it does not go through memory.
    pub carrier: Carrier,
    /// What the call needs.
    pub call: Call,
}

/// What lies between a caller and one instance of its callee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// Both are on one machine.
    pub same_node: bool,
    /// The callee belongs to a chain, hence to a domain.
    pub callee_in_domain: bool,
    /// It is a domain of the caller's too. The gateway is in every one of its node.
    pub same_domain: bool,
    /// The caller is a party: it speaks through shared memory.
    pub caller_is_party: bool,
    /// The instance takes calls through shared memory, and there is a channel to it.
    pub callee_is_party: bool,
}

/// What is known of the two as ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carrier {
    /// What the callee's function asks for.
    pub transport: Transport,
    /// The caller has a certificate.
    pub caller_named: bool,
    /// The instance has one.
    pub callee_named: bool,
    /// UDP did not get through to the instance lately.
    pub udp_blocked: bool,
    /// Both speak TLS over TCP.
    pub tls: bool,
}

impl Carrier {
    /// HTTP over TCP, and nothing else: between ends that know no certificates.
    pub const PLAIN: Self =
        Self { transport: Transport::Tcp, caller_named: false, callee_named: false, udp_blocked: false, tls: false };
}

/// What a call needs of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its connection is to be upgraded (a WebSocket).
    pub upgrade: bool,
    /// It is gRPC: its trailers need HTTP/2, or QUIC, up to the function.
    pub grpc: bool,
}
