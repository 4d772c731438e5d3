//! Connections to destinations outside, opened ahead and kept for functions that live shortly.
//!
//! [`phase`] decides what is kept open, without socket or clock; [`pool`] opens, watches and hands out accordingly. [`idle`] keeps used connections
//! that an adapter has proved clean. [`cwnd`] remembers what the paths to destinations carry, [`from_tls`] speaks TLS towards them. No module here knows a
//! protocol or an instance: what is special about a protocol arrives as plain settings.
#![forbid(unsafe_code)]

pub mod adapter_state;
pub mod counters;
pub mod cwnd;
pub mod destination;
pub mod idle;
pub mod keys;
pub mod pool;
pub mod ready_slot;
pub mod socket;
pub mod state;
pub mod tls;
pub mod upstream;
