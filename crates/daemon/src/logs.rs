//! Logs of the process on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A readable line per event.
    Text,
    /// A JSON object per event.
    Json,
}

/// Filters for the HTTP, TLS and QUIC libraries. They warn about faults of peers, so any client
/// could fill the log through them. Metrics and the access log cover what matters of it.
const LIBRARY_FILTERS: &str = "h2=error,hyper=error,hyper_util=error,quinn=error,quinn_proto=error,quinn_udp=error,rustls=error";

/// Starts logging. `NEARPATH_LOG` filters in the notation of `tracing` (`info`,
/// `nearpath_node=debug`); the default is `info`. HTTP and TLS libraries log errors only, unless it
/// names them (`info,h2=debug`). A second call is ignored.
pub fn init(format: LogFormat) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter_from_env())
        .with_writer(std::io::stderr)
        .with_target(false);
    // Colour codes would only clutter a file.
    let builder = builder.with_ansi(std::io::stderr().is_terminal());
    let _ = match format {
        LogFormat::Text => builder.compact().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// Returns the filter of `NEARPATH_LOG`, or `info` if it is unset or invalid.
fn filter_from_env() -> EnvFilter {
    let directives = std::env::var("NEARPATH_LOG").unwrap_or_default();
    parse_filter(&directives)
        .or_else(|| parse_filter("info"))
        .unwrap_or_default()
}

/// Parses a filter on top of [`LIBRARY_FILTERS`]. Of two directives for one target the later wins,
/// and a longer target wins over a shorter one.
fn parse_filter(directives: &str) -> Option<EnvFilter> {
    let directives = if directives.trim().is_empty() {
        "info"
    } else {
        directives
    };
    EnvFilter::try_new(format!("{LIBRARY_FILTERS},{directives}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    /// Counts the levels at which `target` is logged.
    macro_rules! logged {
        ($directives:expr, $target:literal) => {{
            let subscriber = tracing_subscriber::fmt().with_env_filter(parse_filter($directives).unwrap()).with_writer(std::io::sink);
            tracing::subscriber::with_default(subscriber.finish(), || {
                let levels = [
                    tracing::enabled!(target: $target, Level::ERROR),
                    tracing::enabled!(target: $target, Level::WARN),
                    tracing::enabled!(target: $target, Level::INFO),
                    tracing::enabled!(target: $target, Level::DEBUG),
                ];
                levels.into_iter().filter(|on| *on).count()
            })
        }};
    }

    #[test]
    fn peers_cannot_fill_the_log_through_libraries() {
        for directives in ["", "info", "debug", "info,nearpath_node=debug"] {
            assert_eq!(
                logged!(directives, "h2::proto::ping_pong"),
                1,
                "{directives:?}: errors only"
            );
            assert_eq!(
                logged!(directives, "hyper::proto::h1::role"),
                1,
                "{directives:?}: errors only"
            );
            assert_eq!(
                logged!(directives, "rustls::msgs::handshake"),
                1,
                "{directives:?}: errors only"
            );
        }
        assert_eq!(
            logged!("info,h2=debug", "h2::proto::ping_pong"),
            4,
            "an explicit directive wins"
        );
        assert_eq!(logged!("", "nearpath_node::agent"), 3);
        assert_eq!(logged!("nearpath_node=debug", "nearpath_node::agent"), 4);
        assert!(parse_filter("nearpath_node=loud").is_none());
    }
}
