//! HTTP/3, as clients see it.

pub(crate) mod client;
mod early_data;
mod lifecycle;
mod limits;
mod requests;
