//! An instance as a sandboxed process.
//!
//! [`Launcher`] lives on one thread of the node and runs this very program once more as `instance-init`: the template
//! ([`instance_init`]), which forks for each [`Spec`]. The child joins its cgroups, builds its network (`network`) and its root
//! (`root`), gives up every privilege (`lockdown`) and becomes the watchdog; where a forwarder is to stand at its pair, it waits
//! for that (`guard`). Where warm sockets may take the place of its own, it hands out the end at which its connects are asked about
//! ([`crate::seccomp::handover`]), last of all. What it meets on the way it reports line
//! by line (`notes`; the format is in `contract/notes.md`).

mod etc;
mod guard;
pub mod hatch;
mod init;
mod launcher;
mod lockdown;
mod mounts;
mod network;
mod notes;
mod orders;
mod root;
mod spawn;
mod spec;
mod user;

pub use hatch::Hatch;
pub use init::instance_init;
pub use launcher::{Launched, Launcher};
pub use notes::{NOTES_FD, NOTES_FD_VARIABLE, Note};
pub(crate) use orders::{put, take};
pub(crate) use spawn::allowed as namespaces_allowed;
pub use spec::{Bind, Destination, Isolation, Network, Spec};
pub use user::enter_user_namespace;

/// The argument with which the node's program is started to become an instance.
pub const INIT_ARGUMENT: &str = "instance-init";
