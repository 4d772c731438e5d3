//! What the fuzz targets reach: the readers of all that callers, tenants and operators write.

pub use crate::cgi::variables;
pub use crate::config::command::split as command;
pub use crate::config::{Config, ConfigError};
pub use crate::hop::strip;
pub use crate::mode::decode as path;
pub use crate::notes::failure;
pub use crate::process::output::cut as line;
