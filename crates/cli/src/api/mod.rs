//! A client of the gateway's REST API. Commands use nothing else, even on the gateway's own
//! machine.

mod calls;
mod client;
mod target;
mod tls;

pub(crate) use calls::{DeployOutcome, GatewayInfo, percent_encode};
pub(crate) use client::{ApiClient, error_text};
pub(crate) use target::GatewayTarget;
