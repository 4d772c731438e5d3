//! `nodes`: all nodes of the application, as the asked one sees them.

use clap::Args;
use nearpath_types::{NodeState, NodeStatus};

use super::missing_nodes::warn_missing;
use super::status_tables::format_seconds;
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output::{self, TextTable};

/// Options of `nodes`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct NodesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(super) fn run(args: &NodesArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let (nodes, missing) = client.nodes()?;
    match args.json {
        true => output::print_json(&nodes)?,
        false => output::print(&node_table(&nodes).render())?,
    }
    warn_missing(&missing);
    Ok(ExitStatus::Ok)
}

fn node_table(nodes: &[NodeStatus]) -> TextTable {
    let headings = [
        "NODE",
        "ADDRESS",
        "STATE",
        "VERSION",
        "READY",
        "FUNCTIONS",
        "AGE",
        "RTT",
        "OFFSET",
        "REVISION",
        "APPLIED",
        "REMARK",
    ];
    let mut table = (4..10).fold(TextTable::new(&headings), TextTable::align_right);
    for node in nodes {
        table.add_row(node_row(node));
    }
    table
}

fn node_row(node: &NodeStatus) -> [String; 12] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    // A node that is down has no state, and 0 would be wrong.
    let is_known = node.state.is_reachable();
    let count = |count: u64| or_none(is_known.then(|| count.to_string()));
    let source = node.source.as_ref();
    [
        or_none(node.name.clone()),
        or_none(node.address.clone()),
        node.state.text().to_owned(),
        or_none(node.version.clone()),
        count(node.ready_instances),
        count(node.functions),
        or_none(node.state_age_seconds.map(format_seconds)),
        or_none(node.round_trip_seconds.map(format_seconds)),
        or_none(node.clock_offset_seconds.map(format_offset)),
        or_none(source.map(|source| source.revision.to_string())),
        or_none(source.and_then(|source| source.applied_at.as_deref().map(whole_seconds))),
        remark(node),
    ]
}

/// Cause of the state, and fault of the source.
fn remark(node: &NodeStatus) -> String {
    let cause = node.cause.clone();
    let fault = node.source.as_ref().and_then(|source| source.fault.clone());
    let fault = fault.map(|fault| format!("faulty source: {fault}"));
    let parts: Vec<_> = cause.into_iter().chain(fault).collect();
    match (parts.is_empty(), node.state) {
        (true, NodeState::Draining) => "it takes no new calls".to_owned(),
        _ => parts.join("; "),
    }
}

/// A difference of clocks with its sign.
fn format_offset(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "+" };
    format!("{sign}{}", format_seconds(seconds.abs()))
}

/// An RFC 3339 time without fractions of seconds.
fn whole_seconds(time: &str) -> String {
    match time.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => time.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::SourceReport;

    #[test]
    fn each_node_has_a_row_with_its_state() {
        let own = NodeStatus {
            name: Some("a".into()),
            address: Some("a.example:8444".into()),
            version: Some("0.1.0".into()),
            functions: 2,
            ready_instances: 3,
            source: Some(SourceReport {
                folder: "/srv/app".into(),
                revision: 7,
                applied_at: Some("2026-11-29T16:00:01.123456789Z".into()),
                fault: Some("stack.yml:3: unknown field".into()),
            }),
            ..NodeStatus::default()
        };
        let up = NodeStatus {
            name: Some("b".into()),
            state: NodeState::Up,
            round_trip_seconds: Some(0.0004),
            clock_offset_seconds: Some(-0.002),
            state_age_seconds: Some(12.0),
            source: None,
            ..own.clone()
        };
        let down = NodeStatus {
            name: Some("c".into()),
            state: NodeState::Down,
            cause: Some("cannot connect: connection refused".into()),
            ..NodeStatus::default()
        };
        let text = node_table(&[own, up, down]).render();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|row| {
                row.split("  ")
                    .map(str::trim)
                    .filter(|cell| !cell.is_empty())
                    .collect()
            })
            .collect();
        let fault = "faulty source: stack.yml:3: unknown field";
        assert_eq!(rows[1][2..6], ["this", "0.1.0", "3", "2"], "{text}");
        assert_eq!(rows[1][9..], ["7", "2026-11-29T16:00:01Z", fault], "{text}");
        assert_eq!(rows[2][6..9], ["12.0 s", "400.0 µs", "-2.0 ms"], "{text}");
        assert_eq!(rows[3][..5], ["c", "-", "down", "-", "-"], "{text}");
        assert_eq!(rows[3].last(), Some(&"cannot connect: connection refused"));
    }

    #[test]
    fn the_only_node_needs_no_name() {
        let text = node_table(&[NodeStatus::default()]).render();
        assert!(
            text.lines()
                .nth(1)
                .unwrap()
                .starts_with("-     -        this"),
            "{text}"
        );
    }
}
