//! Jobs with workers on other machines, behind NATs: communication through a rendezvous.
//!
//! Each process has one [`connection::RendezvousConnection`]. It carries control messages, split
//! into reports ([`control_message`]), and calls. From calls, a [`connector::RemoteConnector`]
//! makes the edges of [`crate::worker`]: the producer calls, the consumer answers, and both have a
//! link. The link starts over the relay and moves to a direct path when there is one.
//!
//! The decisions are pure: [`worker_name`], [`control_message`], [`inbox`], [`outbox`],
//! [`call_queue`].

pub mod call_queue;
mod concurrency;
pub mod connection;
pub mod connector;
pub mod control_message;
pub mod identity;
pub mod inbox;
pub mod outbox;
pub mod worker_name;
