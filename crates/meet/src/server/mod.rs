//! The rendezvous and its relay.
pub mod desk;
