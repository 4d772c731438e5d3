//! Calls between functions by name: programs that run unchanged in instances and in plain namespaces.
//!
//! A [`caller_program`] makes the calls of a [`caller_task::CallerTask`] where it runs: in the calling
//! instance, or in a namespace without nearpath. The comparison sends it tasks over its loopback. A
//! [`socket_server`] is a callee with ports of its own. [`deployed`] has these programs as functions, and
//! [`plain_network`] has them in namespaces joined by kernel devices.

pub(crate) mod caller_program;
pub(crate) mod caller_task;
pub(crate) mod chain_fixture;
pub(crate) mod chain_program;
pub(crate) mod control;
pub(crate) mod deployed;
pub(crate) mod plain_network;
mod redis_calls;
mod socket_calls;
pub(crate) mod socket_server;
