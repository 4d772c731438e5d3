//! What the fuzz targets reach besides [`crate::route`]: the readers of a request's head.

pub use crate::adapt::fuzz::{coap, mqtt};
pub use crate::call::Asked;
pub use crate::deliver::functions_uri;
pub use crate::listen::whole::{Seen, Whole, read};
pub use crate::path::own_timeout;
