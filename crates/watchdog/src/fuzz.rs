//! Re-exports for the fuzz targets: the parsers of everything that callers, tenants and operators
//! write.

pub use crate::cgi::cgi_variables;
pub use crate::config::command::split_command as command;
pub use crate::config::{WatchdogConfig, WatchdogConfigError};
pub use crate::mode::decode_path as path;
pub use crate::process::output::cut_line as line;
pub use crate::start_notes::failure_line;
pub use nearpath_wire::hop::headers::strip_hop_headers;
