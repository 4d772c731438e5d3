//! What the kernel does for an instance: namespaces, a veth pair, a root of its own, cgroups, seccomp.
//!
//! The node makes one [`switch::Switch`] and one [`sandbox::Launcher`]; for each instance it makes a [`cgroup::Cgroup`],
//! fills in a [`sandbox::Spec`] and launches it. The child's side is [`sandbox::instance_init`]: it builds the sandbox
//! around itself, drops all power and becomes the watchdog. [`probe`] tells what this machine allows.
//! [`bpf`] carries descriptors from party to party inside the kernel, for chains that ask for it, and packets from namespace
//! to namespace, for a gateway that is not in the switch but a [`station`] on it. At a [`doorway`] the node answers for destinations
//! outside. [`tun`] and [`devices`] are what test labs cable namespaces with. [`reuseport`] leads packets to the thread that waits for
//! them. [`seccomp::listener`], [`foreign`] and [`sockets`] are what a warm socket is put in the place of a function's own with.
//!
//! Everything made here is held by processes and file descriptors alone, so that a killed node leaves nothing but empty
//! cgroup folders, which [`cgroup::Cgroups::sweep`] removes.
#![cfg(target_os = "linux")]

pub mod bpf;
pub mod cgroup;
pub mod cores;
pub mod devices;
pub mod doorway;
pub mod foreign;
pub mod namespace;
mod netlink;
pub mod probe;
pub mod reuseport;
pub mod sandbox;
pub mod seccomp;
pub mod sockets;
pub mod station;
pub mod switch;
pub mod tun;
