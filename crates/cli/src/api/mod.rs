//! The gateway's REST API, as a client sees it. The command line uses nothing else, also on the gateway's own machine.

mod calls;
mod client;
mod target;

pub(crate) use calls::{Deployed, Info, escape};
pub(crate) use client::{Client, error_text};
pub(crate) use target::Target;
