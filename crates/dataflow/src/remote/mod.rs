//! Jobs whose workers run elsewhere, behind NATs: what their processes say to each other by way of a rendezvous.
//!
//! Each process has one [`line::RendezvousConnection`]. Over it go control messages, as [`letter`]s that are cut into reports; and calls, of
//! which [`connector::RemoteConnector`] makes the edges of [`crate::worker`]: the producer calls, the consumer answers, and the two
//! have a link, over the relay at once and directly as soon as there is a way.
//!
//! What decides is pure: [`name`], [`letter`], [`inbox`], [`outbox`], [`calls`]. What has sockets is at the rim.

pub mod call_queue;
mod concurrency;
pub mod connection;
pub mod connector;
pub mod control_message;
pub mod identity;
pub mod inbox;
pub mod outbox;
pub mod worker_name;
