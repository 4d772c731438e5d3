//! DNS inside an instance: declared names and names below a declared one.

pub(crate) mod message;
pub(crate) mod server;
pub(crate) mod wildcard;
