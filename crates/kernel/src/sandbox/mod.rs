//! Instances as sandboxed processes.
//!
//! [`InstanceLauncher`] uses one thread of the node and runs this program once more as
//! `instance-init`, the zygote. The zygote ([`instance_init`]) forks for each [`SandboxSpec`]. The
//! child joins its cgroups, builds its network (`network`) and its root (`rootfs`), drops all
//! privileges (`lockdown`) and becomes the watchdog.
//!
//! With a forwarder the child waits until it is attached (`attach_wait`). For warm sockets it
//! finally hands a seccomp listener to the node ([`crate::seccomp::handover`]). Progress is
//! reported line by line (`notes`; the format is in `contract/notes.md`).

mod attach_wait;
mod etc_files;
mod fd_messages;
mod init;
pub mod inner_socket;
mod launcher;
mod lockdown;
mod mounts;
mod network;
mod notes;
mod rootfs;
mod spawn;
mod spec;
mod user_namespace;
mod zygote_protocol;

pub use init::instance_init;
pub use inner_socket::InnerSocket;
pub use launcher::{InstanceLauncher, LaunchedInstance, ZygoteProgram};
pub use notes::{NOTES_FD, NOTES_FD_VARIABLE, StartNote};
pub(crate) use spawn::try_namespaces as namespaces_allowed;
pub use spec::{
    BindMount, DestinationRoute, HostEntry, InstanceNetwork, IsolationLevel, SandboxSpec,
};
pub use user_namespace::enter_user_namespace;
pub(crate) use zygote_protocol::{receive_message, send_message};

/// Argument that starts the node's program as an instance.
pub const INIT_ARGUMENT: &str = "instance-init";
