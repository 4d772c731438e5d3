//! HTTP/3, as clients see it.

mod client;
mod early_data;
mod lifecycle;
mod limits;
mod requests;
