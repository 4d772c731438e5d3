//! Endpoints of a security domain: joining, peers, calls by name. `contract/dispatch.md` is the
//! protocol, [`nearpath_shm`] the memory underneath.
//!
//! A process joins as an [`endpoint`]. It sends a hello on its socket, receives the pool and its
//! wakeup cell, and learns its peers. Then it calls functions by name and serves calls. On the
//! [`node_side`] the pure [`topology`] decides on channels; the actor also reclaims the slots of
//! dead endpoints. The pure [`peer_table`] holds the peers and open calls of one endpoint.
//! [`protocol`] and [`packet`] define the socket messages.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod body_assembly;
pub mod clock;
pub mod endpoint;
pub mod inbound_body;
#[cfg(feature = "tokio")]
pub mod node_side;
pub mod outbound_body;
pub mod packet;
pub mod peer_table;
pub mod protocol;
pub mod topology;
pub mod trace;

pub use endpoint::{
    CallDestination, CallError, CallReply, CallRequest, CallResponse, CalleeKind, IncomingCall,
    UnsentReason,
};
pub use nearpath_shm::EndpointId;
#[cfg(feature = "tokio")]
pub use node_side::DomainHandle;
