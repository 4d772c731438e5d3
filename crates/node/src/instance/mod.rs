//! A single instance: [`lifecycle::Lifecycle`] runs it, and [`notes`] reads the progress of its
//! start. [`variables`] builds its environment, and [`chain`] adds the variables of a chain.
//! [`ending::InstanceEnding`] explains its end to the tenant.

pub mod chain;
pub mod ending;
mod instance_task;
pub mod lifecycle;
pub mod notes;
pub mod requests;
mod sleep;
pub mod variables;

pub(crate) use instance_task::InstanceTask;
