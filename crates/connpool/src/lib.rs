//! Connections to declared destinations, opened ahead of use and shared by short-lived functions.
//!
//! [`state`] decides what stays open; it has no socket and no clock. [`pool`] dials, watches and
//! hands out accordingly. [`idle`] keeps used connections that an adapter has reset. [`cwnd`]
//! remembers the capacity of the paths to destinations. [`tls`] speaks TLS to them. [`fair_turn`]
//! bounds the bytes that a connection moves before others run. No module here knows a protocol or an instance: protocol details arrive as plain settings.
#![forbid(unsafe_code)]

pub mod adapter_state;
pub mod counters;
pub mod cwnd;
pub mod destination;
pub mod fair_turn;
pub mod idle;
pub mod keys;
pub mod pool;
pub mod ready_slot;
pub mod socket;
pub mod state;
pub mod tls;
pub mod upstream;
