//! The server process of `nearpath up` and `nearpath node`: controller, node and gateway in one
//! process.
//!
//! [`ServerSettings`] comes in ready to use. [`run`] acquires the `resources` first ([`listeners`],
//! [`network`]), so that every refusal comes before anything is started. Then it builds the
//! components ([`build`]), connects them ([`control`], [`fleet`], [`identity`]), and serves until a
//! signal or a successor ([`handover`]). With a source (`nearpath_source`), files declare the state
//! of the controller.
#![forbid(unsafe_code)]

mod autoscaling;
mod build;
mod control;
mod cpu_quota;
mod devices;
mod error;
mod fleet;
mod handover;
mod identity;
mod isolation;
mod listeners;
mod local_status;
mod network;
mod peers;
mod resources;
mod server;
mod settings;
mod source_metrics;

pub use cpu_quota::CpuQuota;
pub use devices::{CoapSettings, DeviceSettings, MqttSettings};
pub use error::StartError;
pub use nearpath_controller::{AuthMode, backup};
pub use nearpath_gateway::GatewaySettings;
pub use nearpath_kernel::cgroup::CgroupController;
pub use nearpath_kernel::sandbox::IsolationLevel;
/// `METHOD_PATH` of instances.
pub use nearpath_node::instance::variables::DEFAULT_PATH as INSTANCE_PATH;
pub use nearpath_node::logs::log_files::LogFileBound;
pub use nearpath_source::SourceSettings;
pub use server::run;
pub use settings::{ForwardMode, PeerSettings, ServerSettings, TlsSettings};
