//! Egress of instances. The egress proxy is the only way out of an instance, so it enforces the
//! policy. Socket interception spares plain TCP connections the proxy hop, and never enforces
//! anything.
#![forbid(unsafe_code)]

pub mod addresses;
mod admission;
mod client_tls;
mod handle;
mod instance;
pub mod intercept;
mod names;
mod policy;
mod proxy;

pub use admission::{AdmissionRequest, TenantLogFn};
pub use handle::{AdmittedInstance, EgressHandle};
pub use instance::EgressInstance;
