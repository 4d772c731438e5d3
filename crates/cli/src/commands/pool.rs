//! `pool ls`, `pool top`: connections to destinations outside, as they are and as they go.

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::{Duration, Instant};

use nearpath_types::pool::PoolStatus;

use super::chain::{Asked, show, size};
use crate::api::{Client, Target};
use crate::args::{ChainArgs, PoolCommand, PoolTopArgs};
use crate::exit::{Exit, Outcome};
use crate::output::{self, Table};

/// To the upper left corner, and nothing below.
const CLEAR: &str = "\x1b[H\x1b[J";
/// More often than this is work for nobody's eyes.
const SHORTEST: Duration = Duration::from_millis(100);

/// Shows them.
pub(super) fn run(command: &PoolCommand) -> Outcome {
    match command {
        PoolCommand::Ls(args) => list(args),
        PoolCommand::Top(args) => top(args),
    }
}

fn list(args: &ChainArgs) -> Outcome {
    show(args, Client::pool, is_of, table)
}

fn is_of(one: &PoolStatus, name: &Asked<'_>) -> bool {
    name.is(&one.owner) || name.is_chain(one.owner.split_once('/').map(|(_, chain)| chain))
}

fn top(args: &PoolTopArgs) -> Outcome {
    let client = Client::new(Target::of(&args.connection, None)?);
    let named = args.name.as_ref().map(|name| name.namespace.clone());
    let namespace = named.or_else(|| args.namespace.clone()).unwrap_or_default();
    let look = || {
        let mut all = client.pool(&namespace)?;
        all.retain(|one| args.name.as_ref().is_none_or(|name| is_of(one, &Asked(name))));
        Ok((Instant::now(), all))
    };
    let mut before = look()?;
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        thread::sleep(args.interval.max(SHORTEST));
        let after = look()?;
        let text = speeds(&before.1, &after.1, after.0 - before.0).render();
        output::print(&if stdout().is_terminal() { format!("{CLEAR}{text}") } else { text })?;
        before = after;
    }
    Ok(Exit::Ok)
}

fn table(all: &[PoolStatus]) -> Table {
    let headings = [
        "OWNER",
        "DESTINATION",
        "PROTOCOL",
        "OPEN",
        "WARM",
        "THERE",
        "WAITING",
        "HITS",
        "MISSES",
        "WAITS",
        "REFUSED",
        "RESETS",
        "BYTES",
        "AGE",
        "AHEAD",
        "PINS",
    ];
    let mut table = (3..14).fold(Table::new(&headings), Table::right);
    for one in all {
        let names = [one.owner.clone(), one.destination.clone(), one.protocol.clone()];
        let counts = [one.hits, one.misses, one.waits, one.refused, one.resets].map(|count| count.to_string());
        let bytes = size(one.sent_bytes.saturating_add(one.received_bytes));
        let age = one.oldest_seconds.map_or("-".to_owned(), |age| format!("{age:.0}s"));
        let pins: Vec<_> = one.pins.iter().map(|(why, count)| format!("{why} {count}")).collect();
        table.row(names.into_iter().chain(now(one)).chain(counts).chain([bytes, age, ahead(one), pins.join(", ")]));
    }
    table
}

/// What the node did before the destination or the function asked for it: what is not 0.
fn ahead(one: &PoolStatus) -> String {
    let counts = [
        ("cached", one.cache_hits),
        ("early", one.early_writes),
        ("lost", one.failed_writes),
        ("prefetched", one.prefetch_used),
        ("in vain", one.prefetch_unused),
    ];
    let told: Vec<_> =
        counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what} {count}")).collect();
    if told.is_empty() { "-".to_owned() } else { told.join(", ") }
}

/// What is at this moment: its own connections, the warm ones of them, all below the ceiling, clients that wait.
fn now(one: &PoolStatus) -> [String; 4] {
    let there = format!("{}/{}", one.open_there, one.max);
    [one.open.to_string(), one.warm.to_string(), there, one.waiting.to_string()]
}

/// What happened between two looks, a second; those first to whom most happened.
fn speeds(before: &[PoolStatus], after: &[PoolStatus], time: Duration) -> Table {
    let headings = [
        "OWNER",
        "DESTINATION",
        "OPEN",
        "WARM",
        "THERE",
        "WAITING",
        "HITS/s",
        "MISSES/s",
        "WAITS/s",
        "REFUSED/s",
        "BYTES/s",
    ];
    let mut table = (2..11).fold(Table::new(&headings), Table::right);
    let mut rows: Vec<_> = after.iter().map(|one| (one, grown(before, one))).collect();
    rows.sort_by_key(|(_, [hits, misses, ..])| std::cmp::Reverse(hits + misses));
    for (one, grown) in rows {
        let speed = |count: u64| count as f64 / time.as_secs_f64().max(1e-3);
        let [counts @ .., bytes] = grown;
        let names = [one.owner.clone(), one.destination.clone()];
        let counts = counts.map(|count| format!("{:.1}", speed(count)));
        table.row(names.into_iter().chain(now(one)).chain(counts).chain([size(speed(bytes) as u64)]));
    }
    table
}

/// Hits, misses, waits, refusals and bytes since the look before. A node that began anew counts from 0.
fn grown(before: &[PoolStatus], one: &PoolStatus) -> [u64; 5] {
    let counts = |one: &PoolStatus| [one.hits, one.misses, one.waits, one.refused, one.sent_bytes + one.received_bytes];
    let is_it = |old: &&PoolStatus| {
        (&old.owner, &old.destination, &old.identity) == (&one.owner, &one.destination, &one.identity)
    };
    let old = before.iter().find(is_it).map(counts).unwrap_or_default();
    let new = counts(one);
    std::array::from_fn(|n| new[n].checked_sub(old[n]).unwrap_or(new[n]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(hits: u64) -> PoolStatus {
        PoolStatus {
            owner: "cart.dev".into(),
            destination: "db:5432".into(),
            protocol: "postgres".into(),
            open: 3,
            open_there: 12,
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
    fn a_row_says_how_far_the_ceiling_is_and_why_connections_are_kept() {
        let text = table(&[one(7)]).render();
        let row = text.lines().nth(1).unwrap();
        assert!(row.starts_with("cart.dev  db:5432      postgres     3     0  12/20"), "{text}");
        assert!(row.ends_with("7.0 KiB    -  cached 3, lost 1  LISTEN 2"), "{text}");
    }

    #[test]
    fn speeds_are_differences_and_the_busiest_comes_first() {
        let quiet = PoolStatus { owner: "a.dev".into(), ..one(100) };
        let text = speeds(&[quiet.clone(), one(10)], &[quiet, one(30)], Duration::from_secs(2)).render();
        let rows: Vec<_> = text.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!((rows[0][0], rows[0][6], rows[1][0], rows[1][6]), ("cart.dev", "10.0", "a.dev", "0.0"), "{text}");
    }

    #[test]
    fn a_node_that_began_anew_counts_from_nothing() {
        assert_eq!(grown(&[one(10)], &one(4))[0], 4);
        assert_eq!(grown(&[], &one(4))[0], 4);
    }
}
