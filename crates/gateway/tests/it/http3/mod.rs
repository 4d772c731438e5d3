//! HTTP/3, as clients see it.

mod client;
mod early;
mod guard;
mod life;
mod requests;
