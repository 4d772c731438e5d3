//! An endpoint of a domain: it joins, learns its peers, makes and serves calls.
//!
//! One core serves two drivers. [`blocking`] is a thread that sleeps in its wakeup cell. Every wait
//! also receives, so a handler may call while it is being called, without a helper thread.
//! [`polled`] runs in a tokio event loop. The core sends at once what has room. The rest waits in
//! the link's send queue until the ring or pool has room.
//!
//! Every call has exactly one outcome: a response, or a [`CallError`]. The error tells if the peer
//! may have seen the call.

pub mod blocking;
mod body_flow;
mod body_reader;
mod caller_field;
mod endpoint_core;
mod errors;
mod join;
mod link;
mod part_sending;
mod payload;
mod peers;
#[cfg(feature = "tokio")]
pub mod polled;
mod send_queue;
mod sockmap_inbox;
mod types;

pub use crate::peer_table::CallDestination;
pub use body_reader::BodyReader;
pub use join::{EndpointIdentity, EndpointSettings, JoinError};
pub use payload::{BodyDraft, CallBody};
pub use types::{
    BodyUnwanted, CallError, CallReply, CallRequest, CallResponse, CalleeKind, CallerIdentity,
    FieldSlice, IncomingCall, OwnedField, PublishReport, UnsentReason,
};
