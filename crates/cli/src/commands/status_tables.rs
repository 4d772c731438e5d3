//! Tables of status reports.

use nearpath_types::chain_status::{EdgeStatus, MemoryStatus, PathStatus};
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::status_query::StatusReport;

use crate::output::TextTable;

pub(super) fn build_table(report: &StatusReport) -> TextTable {
    match report {
        StatusReport::Paths(rows) => paths_table(rows),
        StatusReport::Edges(rows) => edges_table(rows),
        StatusReport::Memory(rows) => memory_table(rows),
        StatusReport::Pool(rows) => pool_table(rows),
    }
}

fn paths_table(paths: &[PathStatus]) -> TextTable {
    let mut table = TextTable::new(&["CALLER", "INSTANCE", "CALLEE", "INSTANCE", "PATH", "REASON"]);
    for path in paths {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let reason = path.reason.clone().unwrap_or_default();
        let (from, to) = (
            or_none(&path.caller_instance),
            or_none(&path.callee_instance),
        );
        table.add_row([
            path.caller.clone(),
            from,
            path.callee.clone(),
            to,
            or_none(&path.path),
            reason,
        ]);
    }
    table
}

fn edges_table(edges: &[EdgeStatus]) -> TextTable {
    let headings = [
        "CHAIN",
        "CALLER",
        "CALLEE",
        "REQUESTS",
        "FAILED",
        "IN FLIGHT",
        "BYTES",
        "MEAN",
    ];
    // Columns of numbers, from REQUESTS on.
    let mut table = (3..8).fold(TextTable::new(&headings), TextTable::align_right);
    for edge in edges {
        let numbers = [
            edge.requests,
            edge.failed,
            edge.in_flight,
            edge.call_bytes.saturating_add(edge.answer_bytes),
        ];
        let names = [&edge.chain, &edge.caller, &edge.callee].map(Clone::clone);
        let mean = if edge.requests == 0 {
            "-".to_owned()
        } else {
            format_seconds(edge.seconds / edge.requests as f64)
        };
        table.add_row(
            names
                .into_iter()
                .chain(numbers.map(|number| number.to_string()))
                .chain([mean]),
        );
    }
    table
}

/// A short time in the unit that suits it.
fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

fn memory_table(chains: &[MemoryStatus]) -> TextTable {
    let headings = ["CHAIN", "FUNCTION", "ENDPOINTS", "SLOTS", "USED", "LIMIT"];
    let mut table = (2..6).fold(TextTable::new(&headings), TextTable::align_right);
    for chain in chains {
        // 4096 bytes are the base page on x86-64.
        let pages = if chain.page_bytes > 4096 {
            " (huge pages)"
        } else {
            ""
        };
        let all = format!("all{pages}");
        let (endpoints, slots) = chain
            .holders
            .iter()
            .fold((0, 0), |(e, s), h| (e + h.endpoints, s + h.slots));
        let sizes = [
            format_bytes(chain.used_bytes),
            format_bytes(chain.size_bytes),
        ];
        let numbers = [endpoints.to_string(), slots.to_string()];
        table.add_row(
            [chain.chain.clone(), all]
                .into_iter()
                .chain(numbers)
                .chain(sizes),
        );
        for holder in &chain.holders {
            let numbers = [holder.endpoints.to_string(), holder.slots.to_string()];
            let sizes = [
                format_bytes(holder.bytes),
                format_bytes(holder.max_held_bytes),
            ];
            table.add_row(
                [String::new(), holder.function.clone()]
                    .into_iter()
                    .chain(numbers)
                    .chain(sizes),
            );
        }
    }
    table
}

pub(super) fn format_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        b if b < 1 << 20 => format!("{:.1} KiB", b as f64 / 1024.0),
        b => format!("{:.1} MiB", b as f64 / 1_048_576.0),
    }
}

/// The table of `pool ls`.
pub(super) fn pool_table(all: &[PoolStatus]) -> TextTable {
    let headings = [
        "OWNER",
        "DESTINATION",
        "PROTOCOL",
        "OPEN",
        "WARM",
        "TOTAL",
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
    let mut table = (3..14).fold(TextTable::new(&headings), TextTable::align_right);
    for one in all {
        let names = [
            one.owner.clone(),
            one.destination.clone(),
            one.protocol.clone(),
        ];
        let counts = [one.hits, one.misses, one.waits, one.refused, one.resets]
            .map(|count| count.to_string());
        let bytes = format_bytes(one.sent_bytes.saturating_add(one.received_bytes));
        let age = one
            .oldest_seconds
            .map_or("-".to_owned(), |age| format!("{age:.0}s"));
        let pins: Vec<_> = one
            .pins
            .iter()
            .map(|(why, count)| format!("{why} {count}"))
            .collect();
        let rest = [bytes, age, count_ahead(one), pins.join(", ")];
        table.add_row(
            names
                .into_iter()
                .chain(current_columns(one))
                .chain(counts)
                .chain(rest),
        );
    }
    table
}

/// Counters of work done ahead of the function or the destination, without those that are 0.
fn count_ahead(one: &PoolStatus) -> String {
    let counts = [
        ("cached", one.cache_hits),
        ("early", one.early_writes),
        ("failed", one.failed_writes),
        ("prefetched", one.prefetch_used),
        ("unused", one.prefetch_unused),
    ];
    let nonzero: Vec<_> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    if nonzero.is_empty() {
        "-".to_owned()
    } else {
        nonzero.join(", ")
    }
}

/// Current values: its own connections, the idle ones of them, all at the destination of `max`,
/// waiting clients.
pub(super) fn current_columns(one: &PoolStatus) -> [String; 4] {
    let at_destination = format!("{}/{}", one.open_in_group, one.max);
    [
        one.open.to_string(),
        one.warm.to_string(),
        at_destination,
        one.waiting.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_line_per_row() {
        let path = PathStatus {
            caller: "gateway".into(),
            callee: "a.b".into(),
            ..PathStatus::default()
        };
        let scaled_to_zero = PathStatus {
            reason: Some("a.b is scaled to zero".into()),
            ..path.clone()
        };
        let near = PathStatus {
            path: Some("shm".into()),
            callee_instance: Some("7".into()),
            ..path
        };
        let text = paths_table(&[scaled_to_zero, near]).render();
        assert!(
            text.contains("gateway  -         a.b     -         -     a.b is scaled to zero\n"),
            "{text}"
        );
        assert!(
            text.contains("gateway  -         a.b     7         shm\n"),
            "{text}"
        );
        let edge = EdgeStatus {
            chain: "shop".into(),
            requests: 4,
            seconds: 0.0001,
            ..EdgeStatus::default()
        };
        let text = edges_table(&[edge]).render();
        assert!(text.ends_with("25.0 µs\n"), "{text}");
    }

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(
            [format_bytes(0), format_bytes(512), format_bytes(3 << 20)],
            ["0", "0.5 KiB", "3.0 MiB"]
        );
        assert_eq!(
            [
                format_seconds(2e-6),
                format_seconds(0.002),
                format_seconds(2.0)
            ],
            ["2.0 µs", "2.0 ms", "2.0 s"]
        );
    }
}
