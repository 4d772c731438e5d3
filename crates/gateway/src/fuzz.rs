//! Entry points of the fuzz targets besides [`crate::route`]: the parsers of a request's head.

pub use crate::deliver::functions_uri;
pub use crate::fast_path::{Seen, Whole, read};
pub use crate::request::{Asked, own_timeout};
