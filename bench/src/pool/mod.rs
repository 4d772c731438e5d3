//! Short-lived functions and their connections to an external server, with and without the pool.
//!
//! [`server`] is their destination. [`dial`] connects repeatedly: as a function in an instance of a
//! `nearpath up` on a machine of the lab. The baseline is the same program on that machine without
//! nearpath. [`setup`] starts both; [`pgbouncer`] is the baseline for databases.

pub(crate) mod dial;
pub(crate) mod pgbouncer;
pub(crate) mod server;
pub(crate) mod setup;
