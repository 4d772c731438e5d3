//! Short-lived functions and the connections that they open to a server elsewhere, with the pool
//! and without.
//!
//! [`server`] is what they connect to. [`dial`] connects, again and again: as a function, in an
//! instance of a `nearpath up` that lives in a machine of the lab, and as an ordinary program of
//! that machine, which is what it is compared with. [`setup`] sets both up; [`pgbouncer`] is for
//! databases what the pool is compared with.

pub(crate) mod dial;
pub(crate) mod pgbouncer;
pub(crate) mod server;
pub(crate) mod setup;
