//! The kernel crate against the real kernel. One binary, so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod cgroups;
mod egress_listener;
mod fixture;
mod flow_cuts;
mod forwarder;
mod forwarder_guard;
mod frames;
mod freezing;
mod loopback_redirect;
mod node_death;
mod sandbox;
mod seccomp_filter;
mod seccomp_listener;
mod sk_msg;
mod switch_servers;
mod thread_group;
mod virtual_switch;
mod without_root;
