//! `paths`, `edges`, `memory`: chains as they are at this moment.

use nearpath_types::chain::{EdgeStatus, MemoryStatus, PathStatus};
use nearpath_types::{FunctionId, Namespace};
use serde::Serialize;

use crate::api::{Client, Target};
use crate::args::ChainArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, Table};

/// Which path calls take.
pub(super) fn paths(args: &ChainArgs) -> Outcome {
    let of = |path: &PathStatus, name: &Asked| {
        name.is_chain(path.chain.as_deref()) || name.is(&path.caller) || name.is(&path.callee)
    };
    show(args, Client::paths, of, paths_table)
}

/// What edges counted.
pub(super) fn edges(args: &ChainArgs) -> Outcome {
    let of = |edge: &EdgeStatus, name: &Asked| {
        name.is_chain(Some(&edge.chain)) || name.is(&edge.caller) || name.is(&edge.callee)
    };
    show(args, Client::edges, of, edges_table)
}

/// Who holds memory.
pub(super) fn memory(args: &ChainArgs) -> Outcome {
    let of = |chain: &MemoryStatus, name: &Asked| {
        name.is_chain(Some(&chain.chain)) || chain.holders.iter().any(|holder| name.is(&holder.function))
    };
    show(args, Client::memory, of, memory_table)
}

/// The chain or function that was named.
pub(super) struct Asked<'a>(pub(super) &'a FunctionId);

impl Asked<'_> {
    pub(super) fn is(&self, function: &str) -> bool {
        function == self.0.to_string()
    }

    pub(super) fn is_chain(&self, chain: Option<&str>) -> bool {
        chain == Some(self.0.name.as_str())
    }
}

pub(super) fn show<T: Serialize>(
    args: &ChainArgs,
    ask: impl Fn(&Client, &Namespace) -> Result<Vec<T>, Failure>,
    of: impl Fn(&T, &Asked<'_>) -> bool,
    table: impl Fn(&[T]) -> Table,
) -> Outcome {
    let client = Client::new(Target::of(&args.connection, None)?);
    let named = args.name.as_ref().map(|name| name.namespace.clone());
    let namespace = named.or_else(|| args.namespace.clone()).unwrap_or_default();
    let mut found = ask(&client, &namespace)?;
    if let Some(name) = &args.name {
        found.retain(|one| of(one, &Asked(name)));
        if found.is_empty() {
            let text = format!("nothing is known of a chain or function {name}; `nearpath ls` lists functions");
            return Err(Failure::new(Exit::NotFound, text));
        }
    }
    match args.json {
        true => output::print_json(&found)?,
        false => output::print(&table(&found).render())?,
    }
    Ok(Exit::Ok)
}

fn paths_table(paths: &[PathStatus]) -> Table {
    let mut table = Table::new(&["CALLER", "INSTANCE", "CALLEE", "INSTANCE", "PATH", "WHY"]);
    for path in paths {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let why = path.why.clone().unwrap_or_default();
        let (from, to) = (or_none(&path.caller_instance), or_none(&path.callee_instance));
        table.row([path.caller.clone(), from, path.callee.clone(), to, or_none(&path.path), why]);
    }
    table
}

fn edges_table(edges: &[EdgeStatus]) -> Table {
    let headings = ["CHAIN", "CALLER", "CALLEE", "REQUESTS", "FAILED", "IN FLIGHT", "BYTES", "MEAN"];
    let mut table = (3..8).fold(Table::new(&headings), Table::right);
    for edge in edges {
        let numbers = [edge.requests, edge.failed, edge.in_flight, edge.call_bytes.saturating_add(edge.answer_bytes)];
        let names = [&edge.chain, &edge.caller, &edge.callee].map(Clone::clone);
        let mean = if edge.requests == 0 { "-".to_owned() } else { brief(edge.seconds / edge.requests as f64) };
        table.row(names.into_iter().chain(numbers.map(|number| number.to_string())).chain([mean]));
    }
    table
}

/// A short time, in the unit that suits it.
fn brief(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

fn memory_table(chains: &[MemoryStatus]) -> Table {
    let headings = ["CHAIN", "FUNCTION", "PARTIES", "SLOTS", "HELD", "BOUND"];
    let mut table = (2..6).fold(Table::new(&headings), Table::right);
    for chain in chains {
        let pages = if chain.page_bytes > 4096 { " (huge pages)" } else { "" };
        let all = format!("all{pages}");
        let (parties, slots) = chain.holders.iter().fold((0, 0), |(p, s), h| (p + h.parties, s + h.slots));
        let numbers = [parties.to_string(), slots.to_string(), size(chain.used_bytes), size(chain.size_bytes)];
        table.row([chain.chain.clone(), all].into_iter().chain(numbers));
        for holder in &chain.holders {
            let numbers = [holder.parties.to_string(), holder.slots.to_string()];
            let bytes = [size(holder.bytes), size(holder.bound_bytes)];
            table.row([String::new(), holder.function.clone()].into_iter().chain(numbers).chain(bytes));
        }
    }
    table
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        b if b < 1 << 20 => format!("{:.1} KiB", b as f64 / 1024.0),
        b => format!("{:.1} MiB", b as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_row_for_each_thing() {
        let path = PathStatus { caller: "gateway".into(), callee: "a.b".into(), ..PathStatus::default() };
        let asleep = PathStatus { why: Some("a.b is asleep".into()), ..path.clone() };
        let near = PathStatus { path: Some("shm".into()), callee_instance: Some("7".into()), ..path };
        let text = paths_table(&[asleep, near]).render();
        assert!(text.contains("gateway  -         a.b     -         -     a.b is asleep\n"), "{text}");
        assert!(text.contains("gateway  -         a.b     7         shm\n"), "{text}");
        let edge = EdgeStatus { chain: "shop".into(), requests: 4, seconds: 0.0001, ..EdgeStatus::default() };
        let text = edges_table(&[edge]).render();
        assert!(text.ends_with("25.0 µs\n"), "{text}");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!([size(0), size(512), size(3 << 20)], ["0", "0.5 KiB", "3.0 MiB"]);
        assert_eq!([brief(2e-6), brief(0.002), brief(2.0)], ["2.0 µs", "2.0 ms", "2.0 s"]);
    }
}
