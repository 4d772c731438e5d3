//! State between nodes: each node reports the functions that it can run, and how loaded they are.
//!
//! The protocol is `contract/node.md`, the reasons are in [decision
//! 101](../../../docs/adr/0101-a-call-to-another-node-goes-to-its-gateway.md). A node serves its
//! [`LocalState`] with a [`StateServer`], and follows other nodes with [`PeerLinks`].
//! [`merge_routes`] adds their functions to the own snapshot. A [`PeerClient`] sends queries to
//! them, and opens streams to their functions. Connections with certificates come from a [`NodeDialer`], so this crate knows no TLS.
#![forbid(unsafe_code)]

pub mod link;
mod local_state;
mod metrics;
mod peer_states;
pub mod peer_view;
mod peers;
pub mod protocol;
mod routes;
mod server;
mod stream_targets;

pub use local_state::{LocalState, NodeFacts};
pub use peer_states::{PeerAvailability, PeerStates, PeerStatus};
pub use peers::{
    DialedStream, NodeDialError, NodeDialer, PeerClient, PeerLines, PeerLinks, PeerStream,
    QUERY_TIMEOUT, QueryError, StreamError, random_incarnation,
};
pub use routes::{MergedRoutes, merge_routes};
pub use server::{
    MAX_PEER_SUBSCRIBERS, MAX_SUBSCRIBERS, StateServer, parse_stream_request, stream_accepted,
    stream_refused,
};
