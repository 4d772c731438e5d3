//! Logs of the process itself, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line an event.
    Text,
    /// One JSON object an event.
    Json,
}

/// The libraries for HTTP, TLS and QUIC warn of what a peer does wrong, so anybody who can connect could fill the log through them; what
/// matters of it is told by metrics and the access log.
const LIBRARY_FILTERS: &str = "h2=error,hyper=error,hyper_util=error,quinn=error,quinn_proto=error,quinn_udp=error,rustls=error";

/// Starts logging. `NEARPATH_LOG` filters in the notation of `tracing` (`info`, `nearpath_node=debug`); without it: `info`. Of
/// the HTTP and TLS libraries only errors are logged, unless it names them (`info,h2=debug`). A second call is ignored.
pub fn init(format: LogFormat) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter_from_env())
        .with_writer(std::io::stderr)
        .with_target(false);
    let builder = builder.with_ansi(std::io::stderr().is_terminal()); // colours are noise in a file
    let _ = match format {
        LogFormat::Text => builder.compact().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// What `NEARPATH_LOG` wants; `info` where it is not set or not understood.
fn filter_from_env() -> EnvFilter {
    let wanted = std::env::var("NEARPATH_LOG").unwrap_or_default();
    parse_filter(&wanted)
        .or_else(|| parse_filter("info"))
        .unwrap_or_default()
}

/// Of two directives for one target the later one holds, and the longer target holds over the shorter one and over none.
fn parse_filter(wanted: &str) -> Option<EnvFilter> {
    let wanted = if wanted.trim().is_empty() {
        "info"
    } else {
        wanted
    };
    EnvFilter::try_new(format!("{LIBRARY_FILTERS},{wanted}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    /// Whether a line of `target` is logged, by level.
    macro_rules! logged {
        ($wanted:expr, $target:literal) => {{
            let subscriber = tracing_subscriber::fmt().with_env_filter(parse_filter($wanted).unwrap()).with_writer(std::io::sink);
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
        for wanted in ["", "info", "debug", "info,nearpath_node=debug"] {
            assert_eq!(
                logged!(wanted, "h2::proto::ping_pong"),
                1,
                "{wanted:?}: errors only"
            );
            assert_eq!(
                logged!(wanted, "hyper::proto::h1::role"),
                1,
                "{wanted:?}: errors only"
            );
            assert_eq!(
                logged!(wanted, "rustls::msgs::handshake"),
                1,
                "{wanted:?}: errors only"
            );
        }
        assert_eq!(
            logged!("info,h2=debug", "h2::proto::ping_pong"),
            4,
            "who asks for it gets it"
        );
        assert_eq!(logged!("", "nearpath_node::agent"), 3);
        assert_eq!(logged!("nearpath_node=debug", "nearpath_node::agent"), 4);
        assert!(parse_filter("nearpath_node=loud").is_none());
    }
}
