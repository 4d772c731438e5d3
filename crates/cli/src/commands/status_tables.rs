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
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let callee_place = path.callee_instance.clone().or(path.callee_node.clone());
        table.add_row([
            path.caller.clone(),
            or_none(path.caller_instance.clone()),
            path.callee.clone(),
            or_none(callee_place),
            or_none(path_text(path)),
            reason_text(path),
        ]);
    }
    with_nodes(table, paths.iter().map(|path| path.node.clone()).collect())
}

/// The path, and for another node the path inside it.
fn path_text(path: &PathStatus) -> Option<String> {
    let first = path.path.as_deref()?;
    Some(match &path.inner_path {
        Some(inner) => format!("{first}, then {inner}"),
        None => first.to_owned(),
    })
}

/// The reason why no nearer path is available, and for another node the one inside it.
fn reason_text(path: &PathStatus) -> String {
    let inner = path.callee_node.as_ref().zip(path.inner_reason.as_ref());
    let inner = inner.map(|(node, reason)| format!("on {node}: {reason}"));
    let parts: Vec<_> = path.reason.clone().into_iter().chain(inner).collect();
    parts.join("; ")
}

/// Adds a column with the node of each row, where there are several nodes.
pub(super) fn with_nodes(mut table: TextTable, nodes: Vec<Option<String>>) -> TextTable {
    if nodes.iter().any(Option::is_some) {
        let cells = nodes.into_iter().map(Option::unwrap_or_default).collect();
        table.prepend_column("NODE", cells);
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
        "CONNECTIONS",
        "DENIED",
    ];
    // Columns of numbers, from REQUESTS on.
    let mut table = (3..10).fold(TextTable::new(&headings), TextTable::align_right);
    for edge in edges {
        let numbers = [
            edge.requests,
            edge.failed,
            edge.in_flight,
            [edge.call_bytes, edge.answer_bytes, edge.connection_bytes]
                .into_iter()
                .fold(0, u64::saturating_add),
        ];
        let connections = [edge.connections, edge.denied_connections];
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
                .chain([mean])
                .chain(connections.map(|number| number.to_string())),
        );
    }
    with_nodes(table, edges.iter().map(|edge| edge.node.clone()).collect())
}

/// A short time in the unit that suits it.
pub(super) fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

fn memory_table(chains: &[MemoryStatus]) -> TextTable {
    let headings = ["CHAIN", "FUNCTION", "ENDPOINTS", "SLOTS", "USED", "LIMIT"];
    let mut table = (2..6).fold(TextTable::new(&headings), TextTable::align_right);
    let mut nodes = Vec::new();
    for chain in chains {
        // Only the first line of a chain: those of its functions belong to it.
        nodes.push(chain.node.clone());
        nodes.extend(chain.holders.iter().map(|_| None));
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
    with_nodes(table, nodes)
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
        "SHARE",
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
        let share = describe_share(one);
        let rest = [bytes, age, share, count_ahead(one), pins.join(", ")];
        table.add_row(
            names
                .into_iter()
                .chain(current_columns(one))
                .chain(counts)
                .chain(rest),
        );
    }
    with_nodes(table, all.iter().map(|one| one.node.clone()).collect())
}

/// Describes the part of a limit that this node has, if others have the rest.
fn describe_share(one: &PoolStatus) -> String {
    let Some((max, nodes)) = one.declared_max.zip(one.sharing_nodes) else {
        return "-".to_owned();
    };
    let share = format!("{} of {max}, {nodes} nodes", one.max);
    match nodes > max {
        true => format!("{share}: too many"),
        false => share,
    }
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
    fn the_share_of_a_node_is_shown_with_the_whole_limit() {
        let with = |max, declared_max, sharing_nodes| PoolStatus {
            max,
            declared_max,
            sharing_nodes,
            ..PoolStatus::default()
        };
        assert_eq!(describe_share(&with(9, None, None)), "-");
        assert_eq!(
            describe_share(&with(3, Some(10), Some(3))),
            "3 of 10, 3 nodes"
        );
        let more_nodes = with(1, Some(2), Some(3));
        assert_eq!(describe_share(&more_nodes), "1 of 2, 3 nodes: too many");
    }

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
            connections: 7,
            denied_connections: 2,
            ..EdgeStatus::default()
        };
        let text = edges_table(&[edge]).render();
        assert!(text.ends_with("25.0 µs            7       2\n"), "{text}");
    }

    #[test]
    fn rows_of_several_nodes_name_them() {
        let text = |text: &str| Some(text.to_owned());
        let across = PathStatus {
            node: text("a"),
            caller: "front.x".into(),
            caller_instance: text("a/i1"),
            callee: "cart.x".into(),
            callee_instance: text("b/i2"),
            callee_node: text("b"),
            path: text("quic"),
            reason: text("the instance is on another machine"),
            inner_path: text("http"),
            inner_reason: text("no endpoint"),
            ..PathStatus::default()
        };
        let unknown = PathStatus {
            callee_instance: None,
            inner_path: None,
            inner_reason: None,
            ..across.clone()
        };
        let shown = paths_table(&[across, unknown]).render();
        let row = "a     front.x  a/i1      cart.x  b/i2      quic, then http  \
                   the instance is on another machine; on b: no endpoint\n";
        assert!(
            shown.starts_with("NODE  CALLER") && shown.contains(row),
            "{shown}"
        );
        assert!(shown.contains("cart.x  b         quic  "), "{shown}");
        let memory = MemoryStatus {
            node: text("b"),
            chain: "shop".into(),
            holders: vec![nearpath_types::chain_status::HolderStatus::default()],
            ..MemoryStatus::default()
        };
        let shown = memory_table(&[memory]).render();
        assert!(shown.contains("\nb     shop"), "{shown}");
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
