//! What a decision rests on.

/// Everything about one call to one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What lies between the two.
    pub edge: Edge,
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

/// What a call needs of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its connection is to be upgraded (a WebSocket).
    pub upgrade: bool,
    /// It is gRPC: its trailers need HTTP/2 up to the function.
    pub grpc: bool,
}
