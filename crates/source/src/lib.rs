//! The folder source: files declare the state of a node, and every change of them is applied.
//!
//! A few machines run one application without a control plane. Each has the same folder, which the
//! operator copies there. It contains `nodes.yml`, stack files, the folders of handlers, and
//! secrets.
//!
//! A change takes these steps. [`FolderScan`](scan::FolderScan) notices it by the metadata of all
//! files in use. `ChangeDetector` (pure) waits until the folder is still. `read_folder` makes a
//! [`DeclaredState`](nearpath_controller::DeclaredState) of it or names its fault. The controller
//! applies the state as a whole and keeps it, so a node restarts without its folder. After a fault
//! the last good state stays.
#![forbid(unsafe_code)]

mod change_detector;
mod digest;
mod fault;
mod reader;
mod recording;
mod scan;
mod secrets;
mod source_poller;
mod status;
mod watcher;

pub use status::SourceStatus;
pub use watcher::{SourceHandle, SourceSettings};
