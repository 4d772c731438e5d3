//! Logs of the process itself, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One readable line an event.
    Text,
    /// One JSON object an event.
    Json,
}

/// Starts logging. `NEARPATH_LOG` filters in the notation of `tracing` (`info`, `nearpath_node=debug`); without it:
/// `info`. A second call is ignored.
pub fn init(format: Format) {
    let filter = EnvFilter::try_from_env("NEARPATH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let builder = builder.with_ansi(std::io::stderr().is_terminal()); // colours are noise in a file
    let _ = match format {
        Format::Text => builder.compact().try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
}
