//! Desired state, kept on disk, and the REST API in front of it.
//!
//! A change takes these steps. [`api`] reads and checks the request. The `store` thread
//! ([`store_writer`]) decides it on the [`model`] (pure) and writes it ([`store`]: SQLite, on disk
//! before anything else happens). Then it applies the whole desired state to the [`Fleet`] and
//! replies. Readers take the last committed model and never wait.
//!
//! A source outside, such as a folder, may declare the whole state instead
//! ([`Controller::apply_declared`]). It takes the same steps, and the API refuses changes then.
//!
//! The API has OpenFaaS's paths, bodies and status codes, so its clients work unchanged.
//! `contract/openapi/nearpath.yaml` describes it.
#![forbid(unsafe_code)]

mod admin_logins;
pub mod api;
pub mod backup;
mod controller;
pub mod credentials;
mod fleet;
mod login_limit;
mod merge;
pub mod model;
mod peers;
pub mod store;
pub mod store_writer;

pub use admin_logins::{AdminLogins, LoginRefusal};
pub use controller::{BuildVersion, Controller, ControllerConfig};
pub use credentials::{AdminCredentials, AuthMode};
pub use fleet::{Fleet, HeldFolders};
pub use model::{
    CommandOutcome, ControllerCommand, ControllerModel, DeclaredFunction, DeclaredState,
    FolderDigest, SecretId, SecretValue,
};
pub use peers::{PeerLineStream, PeerNodes};
pub use store::{DataDir, StoreError, StoreOpenError};
pub use store_writer::ControllerError;
