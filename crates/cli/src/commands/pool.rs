//! `pool ls`, `pool top`: connections to destinations outside, as a snapshot or as rates.

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::{StatusQuery, StatusReport, duration};

use super::missing_nodes::warn_missing;
use super::status::{StatusArgs, StatusFilter, show};
use super::status_tables::{current_columns, format_bytes, with_nodes};
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output::{self, TextTable};

/// Views of the connections to destinations outside.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum PoolCommand {
    /// List connections by function and destination, with counters since the node started
    #[command(visible_alias = "list")]
    Ls(StatusArgs),
    /// Show rates per second repeatedly, until Ctrl-C
    Top(PoolTopArgs),
}

/// Options of `pool top`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct PoolTopArgs {
    /// Wait this long between two samples
    #[arg(long, default_value = "2s", value_parser = duration::parse_duration, value_name = "DURATION")]
    pub interval: Duration,
    /// Exit after this many tables
    #[arg(long, value_name = "COUNT")]
    pub count: Option<u64>,
    #[command(flatten)]
    pub filter: StatusFilter,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Moves the cursor to the upper left corner and clears the screen (ECMA-48).
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";
/// Shortest interval: people do not read faster.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(command: &PoolCommand) -> CommandResult {
    match command {
        PoolCommand::Ls(args) => show(StatusQuery::Pool, args),
        PoolCommand::Top(args) => top(args),
    }
}

fn top(args: &PoolTopArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    // Rates need two samples, so nothing is shown before the first interval is over.
    let mut before = sample(&client, &args.filter)?;
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        thread::sleep(args.interval.max(MIN_INTERVAL));
        let after = sample(&client, &args.filter)?;
        let text = rate_table(&before.1, &after.1, after.0 - before.0).render();
        // Elsewhere the tables follow each other, for a file or a pipe.
        output::print(&if stdout().is_terminal() {
            format!("{CLEAR_SCREEN}{text}")
        } else {
            text
        })?;
        before = after;
    }
    Ok(ExitStatus::Ok)
}

fn sample(
    client: &ApiClient,
    filter: &StatusFilter,
) -> Result<(Instant, Vec<PoolStatus>), CommandError> {
    let (report, missing) = filter.fetch(client, StatusQuery::Pool)?;
    warn_missing(&missing);
    match report {
        StatusReport::Pool(rows) => Ok((Instant::now(), rows)),
        _ => Ok((Instant::now(), Vec::new())), // a report has the rows of its query
    }
}

/// Rates per second between two samples, the busiest first.
fn rate_table(before: &[PoolStatus], after: &[PoolStatus], time: Duration) -> TextTable {
    let headings = [
        "OWNER",
        "DESTINATION",
        "OPEN",
        "WARM",
        "TOTAL",
        "WAITING",
        "HITS/s",
        "MISSES/s",
        "WAITS/s",
        "REFUSED/s",
        "BYTES/s",
    ];
    let mut table = (2..11).fold(TextTable::new(&headings), TextTable::align_right);
    let mut rows: Vec<_> = after.iter().map(|one| (one, growth(before, one))).collect();
    rows.sort_by_key(|(_, [hits, misses, ..])| std::cmp::Reverse(hits + misses));
    let mut nodes = Vec::new();
    for (one, growth) in rows {
        nodes.push(one.node.clone());
        // At least 1 ms: a clock without progress must not divide by 0.
        let rate = |count: u64| count as f64 / time.as_secs_f64().max(1e-3);
        let [counts @ .., bytes] = growth;
        let names = [one.owner.clone(), one.destination.clone()];
        let counts = counts.map(|count| format!("{:.1}", rate(count)));
        let bytes = format_bytes(rate(bytes) as u64);
        table.add_row(
            names
                .into_iter()
                .chain(current_columns(one))
                .chain(counts)
                .chain([bytes]),
        );
    }
    with_nodes(table, nodes)
}

/// Growth of hits, misses, waits, refusals and bytes since the last sample.
fn growth(before: &[PoolStatus], one: &PoolStatus) -> [u64; 5] {
    let counts = |one: &PoolStatus| {
        [
            one.hits,
            one.misses,
            one.waits,
            one.refused,
            one.sent_bytes + one.received_bytes,
        ]
    };
    let is_same = |old: &&PoolStatus| {
        // The identity too: one destination has a pool per client certificate, and per node.
        (&old.node, &old.owner, &old.destination, &old.identity)
            == (&one.node, &one.owner, &one.destination, &one.identity)
    };
    let old = before.iter().find(is_same).map(counts).unwrap_or_default();
    let new = counts(one);
    // A restarted node counts from 0 again: then the new value is the growth.
    std::array::from_fn(|n| new[n].checked_sub(old[n]).unwrap_or(new[n]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status_tables::pool_table;

    fn one(hits: u64) -> PoolStatus {
        PoolStatus {
            owner: "cart.dev".into(),
            destination: "db:5432".into(),
            protocol: "postgres".into(),
            open: 3,
            open_in_group: 12,
            max: 20,
            hits,
            sent_bytes: hits * 1024,
            cache_hits: 3,
            failed_writes: 1,
            pins: [("LISTEN".to_owned(), 2)].into(),
            ..PoolStatus::default()
        }
    }

    #[test]
    fn a_row_shows_the_limit_and_the_reasons_of_pins() {
        let text = pool_table(&[one(7)]).render();
        let row = text.lines().nth(1).unwrap();
        assert!(
            row.starts_with("cart.dev  db:5432      postgres     3     0  12/20"),
            "{text}"
        );
        assert!(
            row.ends_with("7.0 KiB    -  -      cached 3, failed 1  LISTEN 2"),
            "{text}"
        );
    }

    #[test]
    fn rates_are_differences_and_the_busiest_comes_first() {
        let quiet = PoolStatus {
            owner: "a.dev".into(),
            ..one(100)
        };
        let text = rate_table(
            &[quiet.clone(), one(10)],
            &[quiet, one(30)],
            Duration::from_secs(2),
        )
        .render();
        let rows: Vec<_> = text
            .lines()
            .skip(1)
            .map(|row| row.split_whitespace().collect::<Vec<_>>())
            .collect();
        assert_eq!(
            (rows[0][0], rows[0][6], rows[1][0], rows[1][6]),
            ("cart.dev", "10.0", "a.dev", "0.0"),
            "{text}"
        );
    }

    #[test]
    fn a_restarted_node_counts_from_zero() {
        assert_eq!(growth(&[one(10)], &one(4))[0], 4);
        assert_eq!(growth(&[], &one(4))[0], 4);
    }
}
