//! DNS inside an instance: declared names and names below a declared one.

mod lookup_rate;
pub(crate) mod message;
pub(crate) mod server;
pub(crate) mod wildcard;
