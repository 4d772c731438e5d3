//! `logs`: the log lines of a function's instances.

use std::io::BufRead;
use std::time::{Duration, SystemTime};

use clap::Args;
use nearpath_types::status::rfc3339;
use nearpath_types::{FunctionId, LogQuery, MissingNode, NodeLogLine, duration};

use super::missing_nodes::warn_missing;
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output;

/// Options of `logs`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct LogsArgs {
    /// Name the function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Continue with new lines until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Show only the last lines; with --follow, of each node
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Show only lines of the last DURATION
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_duration)]
    pub since: Option<Duration>,
    /// Show only lines of this instance; NODE/ID with several nodes
    #[arg(long, value_name = "ID")]
    pub instance: Option<String>,
    /// Print one JSON object per line, as the gateway sends them
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(super) fn run(args: &LogsArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let query = LogQuery {
        function: args.name.clone(),
        instance: args.instance.clone(),
        tail: args.tail,
        since: args.since.map(|ago| {
            // The client's clock: with a skew, lines may be missing or too many, but none are
            // wrong.
            SystemTime::now()
                .checked_sub(ago)
                .unwrap_or(SystemTime::UNIX_EPOCH)
        }),
        follow: args.follow,
    };
    // Bytes, not `lines()`: a line that is not UTF-8 must not end the log.
    for line in client.logs(&query)?.split(b'\n') {
        let broken = |error| {
            CommandError::new(
                ExitStatus::Unreachable,
                format!("log stream interrupted: {error}"),
            )
        };
        let line = line.map_err(broken)?;
        if !line.trim_ascii().is_empty() {
            print_line(&String::from_utf8_lossy(&line), args.json)?;
        }
    }
    Ok(ExitStatus::Ok)
}

/// Prints one line; a line of unknown shape is passed on as it came. Lines about missing nodes go
/// to standard error, so that the output has lines of functions alone.
fn print_line(line: &str, json: bool) -> Result<(), CommandError> {
    match serde_json::from_str::<NodeLogLine>(line) {
        Ok(NodeLogLine { node, error, .. }) if !json && error.is_some() => {
            let (node, cause) = (node.unwrap_or_default(), error.unwrap_or_default());
            warn_missing(&[MissingNode { node, cause }]);
            Ok(())
        }
        Ok(NodeLogLine { line, .. }) if !json => output::print(&format!(
            "{} {} {}\n",
            rfc3339::format_time(line.timestamp),
            line.instance,
            line.text
        )),
        _ => output::print(&format!("{}\n", line.trim_end())),
    }
}
