//! Desired state, kept on disk, and the REST API in front of it.
//!
//! A change walks one way: [`api`] reads and checks the request, the `store` thread ([`writer`]) decides it on the
//! [`model`] (pure), writes it ([`store`]: SQLite, on disk before anything else happens), applies the whole truth to
//! the [`Fleet`] and answers. Readers take the last committed model and never wait.
//!
//! The API has OpenFaaS's paths, bodies and status codes, so its clients work unchanged;
//! `contract/openapi/nearpath.yaml` describes it.
#![forbid(unsafe_code)]

pub mod api;
mod controller;
pub mod credentials;
mod fleet;
pub mod model;
pub mod store;
pub mod writer;

pub use controller::{Config, Controller, Version};
pub use credentials::{Auth, Credentials};
pub use fleet::Fleet;
pub use model::{Command, Model, Outcome};
pub use store::{DataDir, OpenError, StoreError};
pub use writer::Failure;
