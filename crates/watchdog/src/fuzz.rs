//! What the fuzz targets reach: the readers of all that callers, tenants and operators write.

pub use crate::cgi::cgi_variables;
pub use crate::config::command::split_command as command;
pub use crate::config::{WatchdogConfig, WatchdogConfigError};
pub use crate::hop_headers::strip_hop_headers;
pub use crate::mode::decode_path as path;
pub use crate::process::output::cut_line as line;
pub use crate::start_notes::failure_line;
