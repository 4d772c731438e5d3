//! Kernel facilities for instances: namespaces, veth pairs, root file systems, cgroups, seccomp and
//! BPF.
//!
//! The node creates one [`hub_netns::HubNetns`] and one [`sandbox::InstanceLauncher`]. For each
//! instance it creates a [`cgroup::InstanceCgroup`], fills in a [`sandbox::SandboxSpec`] and
//! launches it. [`sandbox::instance_init`] is the child's side: it builds the sandbox around
//! itself, drops all privileges and becomes the watchdog.
//!
//! - [`probe`] reports which of these facilities the machine supports.
//! - [`bpf`] delivers descriptors between endpoints inside the kernel, and forwards packets between
//!   namespaces.
//! - [`attached_netns`] is for a gateway outside the hub, [`egress_listener`] for destinations
//!   outside.
//! - [`local_address`] tells the machine's own addresses from others.
//! - [`reuseport`] steers packets to the right thread of several.
//! - [`seccomp::listener`], [`remote_thread`] and [`sockets`] replace a function's socket by a warm
//!   one.
//! - [`tun`] and [`devices`] build networks for tests.
//!
//! Processes and file descriptors hold everything made here. A killed node leaves only empty cgroup
//! folders, which [`cgroup::NodeCgroups::sweep_leftovers`] removes.
#![cfg(target_os = "linux")]

pub mod attached_netns;
pub mod bpf;
pub mod cgroup;
pub mod cores;
pub mod devices;
pub mod egress_listener;
pub mod hub_netns;
pub mod local_address;
pub mod namespace;
mod netlink;
pub mod probe;
pub mod remote_thread;
pub mod reuseport;
pub mod sandbox;
pub mod seccomp;
pub mod sockets;
pub mod tun;
