//! The way out of an instance: the egress proxy is the only one there is, and so enforces the policy. Socket interception spares a plain TCP
//! destination that way.
#![forbid(unsafe_code)]

pub mod addresses;
mod handle;
mod instance;
pub mod intercept;
mod names;
mod policy;
mod proxy;

pub use handle::{AdmissionRequest, AdmittedInstance, EgressHandle, TenantLogFn};
pub use instance::EgressInstance;
