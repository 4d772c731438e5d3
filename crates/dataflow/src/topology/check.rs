//! What is wrong with a topology, each with the worker's name and what to change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::{How, Topology, Worker};

/// How much one worker may be connected to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams that one worker reads. Each is a connection, a descriptor and a window of memory.
    pub fan_in: usize,
    /// Streams that one worker writes.
    pub fan_out: usize,
    /// Of one job.
    pub workers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fan_in: 512, fan_out: 512, workers: 10_000 }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum Flaw {
    #[error("there are no workers: a job needs at least one")]
    Empty,
    #[error("`{0}` cannot be a name: use 1 to 100 letters, digits, `-`, `_` and `.`")]
    Name(String),
    #[error("two are called `{0}`: rename one of them")]
    Doubled(String),
    #[error("`{worker}` names `{other}`, which does not exist: add `{other}`, or correct the name")]
    Dangling { worker: String, other: String },
    #[error(
        "`{from}` has an output to `{to}`, which has no input from it: add {{\"type\": \"tcp\", \"worker\": \"{from}\"}} to the inputs of `{to}`"
    )]
    NoInput { from: String, to: String },
    #[error(
        "`{to}` has an input from `{from}`, which has no output to it: add {{\"type\": \"tcp\", \"worker\": \"{to}\"}} to the outputs of `{from}`"
    )]
    NoOutput { from: String, to: String },
    #[error("`{from}` goes to `{to}` twice: leave one out")]
    Twice { from: String, to: String },
    #[error("items would go round for ever: {}: take one of these edges out", .0.join(" -> "))]
    Cycle(Vec<String>),
    #[error(
        "`{worker}` has no inputs, so nothing ever comes: give it one (of a type of your own, where it makes its items itself)"
    )]
    Silent { worker: String },
    #[error(
        "`{worker}` reads {has} streams, {limit} is the limit: use fewer workers before it, or a stage between that gathers in groups"
    )]
    FanIn { worker: String, has: usize, limit: usize },
    #[error(
        "`{worker}` writes {has} streams, {limit} is the limit: use fewer workers after it, or a stage between that spreads in groups"
    )]
    FanOut { worker: String, has: usize, limit: usize },
    #[error("the job has {has} workers, {limit} is the limit: use fewer")]
    Many { has: usize, limit: usize },
    #[error("`{0}` has 0 workers: it needs at least 1")]
    NoWorkers(String),
    #[error("`{from}` has {left} workers and `{to}` has {right}: one-to-one needs the same number, or say `spread`")]
    Unequal { from: String, to: String, left: usize, right: usize },
    #[error("`{to}` has {workers} workers: gather needs exactly 1, or say `spread`")]
    Gather { to: String, workers: usize },
    #[error("`{stage}` has {workers} workers and at most {most}: say a greater `most`, or leave it out")]
    Most { stage: String, workers: usize, most: usize },
    #[error("`{to}` may grow, so what goes there from `{from}` cannot go {}: say `spread`", how.name())]
    Grows { from: String, to: String, how: How },
    #[error("`{from}` may grow, so what goes from there to `{to}` cannot go one-to-one: say `spread`")]
    GrowsFrom { from: String, to: String },
    #[error("`{0}` may grow, but reads no stream, so nobody can ask for more of it: leave `most` or `spare` out")]
    NobodyAsks(String),
    #[error("all that `{from}` has for `{group}` is spare: one of them must be there from the beginning")]
    OnlySpares { from: String, group: String },
}

/// All that is wrong, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaws(pub Vec<Flaw>);

impl fmt::Display for Flaws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, flaw) in self.0.iter().enumerate() {
            write!(f, "{}{flaw}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Flaws {}

impl Flaws {
    pub(crate) fn none(flaws: Vec<Flaw>) -> Result<(), Self> {
        if flaws.is_empty() { Ok(()) } else { Err(Self(flaws)) }
    }
}

impl Topology {
    /// Whether it can run.
    ///
    /// # Errors
    /// All flaws: names, ends that do not match, cycles, fan-in.
    pub fn check(&self, limits: Limits) -> Result<(), Flaws> {
        let mut flaws = Vec::new();
        if self.workers.is_empty() {
            flaws.push(Flaw::Empty);
        }
        if self.workers.len() > limits.workers {
            return Err(Flaws(vec![Flaw::Many { has: self.workers.len(), limit: limits.workers }]));
        }
        names(self.workers.iter().map(|worker| &*worker.name), &mut flaws);
        for worker in &self.workers {
            self.check_ends(worker, &mut flaws);
            check_counts(worker, limits, &mut flaws);
        }
        if flaws.is_empty() {
            let edges = self.workers.iter().map(|w| (&*w.name, w.targets().map(|to| &*to.worker).collect())).collect();
            flaws.extend(cycle(&edges).map(Flaw::Cycle));
        }
        Flaws::none(flaws)
    }

    fn check_ends(&self, worker: &Worker, flaws: &mut Vec<Flaw>) {
        let name = || worker.name.clone();
        for target in worker.targets() {
            let to = || target.worker.clone();
            match self.worker(&target.worker) {
                None => flaws.push(Flaw::Dangling { worker: name(), other: to() }),
                Some(other) if !other.sources().any(|from| from.worker == worker.name) => {
                    flaws.push(Flaw::NoInput { from: name(), to: to() });
                }
                Some(_) => {}
            }
        }
        for source in worker.sources() {
            let from = || source.worker.clone();
            match self.worker(&source.worker) {
                None => flaws.push(Flaw::Dangling { worker: name(), other: from() }),
                Some(other) if !other.targets().any(|to| to.worker == worker.name) => {
                    flaws.push(Flaw::NoOutput { from: from(), to: name() });
                }
                Some(_) => {}
            }
        }
        twice(worker, flaws);
        check_growth(worker, flaws);
    }
}

fn check_growth(worker: &Worker, flaws: &mut Vec<Flaw>) {
    let name = || worker.name.clone();
    if worker.spare && worker.sources().next().is_none() {
        flaws.push(Flaw::NobodyAsks(name()));
    }
    let mut has_only_spares: BTreeMap<&str, bool> = BTreeMap::new();
    for to in worker.targets() {
        *has_only_spares.entry(to.group.as_deref().unwrap_or(&to.worker)).or_insert(true) &= to.later;
        if to.later && to.how != How::Spread {
            flaws.push(Flaw::Grows { from: name(), to: to.worker.clone(), how: to.how });
        }
    }
    let bare = has_only_spares.into_iter().filter(|(_, only)| *only);
    flaws.extend(bare.map(|(to, _)| Flaw::OnlySpares { from: name(), group: to.to_owned() }));
}

fn twice(worker: &Worker, flaws: &mut Vec<Flaw>) {
    let mut seen = HashSet::new();
    for to in worker.targets().filter(|to| !seen.insert(&*to.worker)) {
        flaws.push(Flaw::Twice { from: worker.name.clone(), to: to.worker.clone() });
    }
    let mut seen = HashSet::new();
    for from in worker.sources().filter(|from| !seen.insert(&*from.worker)) {
        flaws.push(Flaw::Twice { from: from.worker.clone(), to: worker.name.clone() });
    }
}

fn check_counts(worker: &Worker, limits: Limits, flaws: &mut Vec<Flaw>) {
    let name = || worker.name.clone();
    if worker.inputs.is_empty() {
        flaws.push(Flaw::Silent { worker: name() });
    }
    let (reads, writes) = (worker.sources().count(), worker.targets().count());
    if reads > limits.fan_in {
        flaws.push(Flaw::FanIn { worker: name(), has: reads, limit: limits.fan_in });
    }
    if writes > limits.fan_out {
        flaws.push(Flaw::FanOut { worker: name(), has: writes, limit: limits.fan_out });
    }
}

/// Names that cannot be, or are there twice.
pub(crate) fn names<'a>(names: impl Iterator<Item = &'a str>, flaws: &mut Vec<Flaw>) {
    let mut seen = HashSet::new();
    for name in names {
        if !is_name(name) {
            flaws.push(Flaw::Name(name.to_owned()));
        }
        if !seen.insert(name) {
            flaws.push(Flaw::Doubled(name.to_owned()));
        }
    }
}

/// Names become files, so they cannot begin with a dot or hold a slash.
fn is_name(name: &str) -> bool {
    let fits = (1..=100).contains(&name.len()) && !name.starts_with('.');
    fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// One cycle, from its beginning to its beginning. Without recursion: a chain may be long.
pub(crate) fn cycle(edges: &HashMap<&str, Vec<&str>>) -> Option<Vec<String>> {
    let mut starts: Vec<&str> = edges.keys().copied().collect();
    starts.sort_unstable();
    let mut done = HashSet::new();
    starts.into_iter().find_map(|start| cycle_from(start, edges, &mut done))
}

fn cycle_from<'a>(
    start: &'a str,
    edges: &HashMap<&'a str, Vec<&'a str>>,
    done: &mut HashSet<&'a str>,
) -> Option<Vec<String>> {
    let mut trail = vec![(start, 0)];
    while let Some((name, next)) = trail.last_mut() {
        let target = edges.get(name).and_then(|targets| targets.get(*next)).copied();
        *next += 1;
        match target {
            None => {
                done.insert(*name);
                trail.pop();
            }
            Some(target) => match trail.iter().position(|(name, _)| *name == target) {
                Some(at) => {
                    let round = trail[at..].iter().map(|(name, _)| *name).chain([target]);
                    return Some(round.map(str::to_owned).collect());
                }
                None if !done.contains(target) => trail.push((target, 0)),
                None => {}
            },
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaws(workers: &str) -> Vec<Flaw> {
        let topology = Topology::from_json(&format!("{{\"workers\": [{workers}]}}")).unwrap();
        topology.check(Limits::default()).map_or_else(|flaws| flaws.0, |()| Vec::new())
    }

    const READER: &str = r#"{"name": "reader", "inputs": [{"type": "file", "path": "a.txt"}], "outputs": [{"type": "tcp", "worker": "writer"}]}"#;
    const WRITER: &str =
        r#"{"name": "writer", "inputs": [{"type": "tcp", "worker": "reader"}], "outputs": [{"type": "console"}]}"#;

    #[test]
    fn two_workers_with_types_of_their_own() {
        assert_eq!(flaws(&format!("{READER}, {WRITER}")), []);
        let topology = Topology::from_json(&format!("{{\"workers\": [{READER}]}}")).unwrap();
        let crate::topology::Port::Own(own) = &topology.workers[0].inputs[0] else { panic!("{topology:?}") };
        assert_eq!((&*own.kind, own.fields["path"].as_str()), ("file", Some("a.txt")));
    }

    #[test]
    fn ends_must_match() {
        assert_eq!(flaws(READER), [Flaw::Dangling { worker: "reader".into(), other: "writer".into() }]);
        let deaf = r#"{"name": "writer", "inputs": [{"type": "clock"}], "outputs": []}"#;
        assert_eq!(flaws(&format!("{READER}, {deaf}")), [Flaw::NoInput { from: "reader".into(), to: "writer".into() }]);
        let mute = r#"{"name": "reader", "inputs": [{"type": "file"}], "outputs": []}"#;
        assert_eq!(
            flaws(&format!("{mute}, {WRITER}")),
            [Flaw::NoOutput { from: "reader".into(), to: "writer".into() }]
        );
    }

    #[test]
    fn spares_are_asked_for_by_those_whom_they_read() {
        let reader = |how: &str, first: &str| {
            let to =
                |worker: &str| format!(r#"{{"type": "tcp", "worker": "{worker}", "how": "{how}", "group": "work"}}"#);
            let outputs = format!("{}{}", if first.is_empty() { String::new() } else { to(first) + ", " }, to("spare"));
            format!(r#"{{"name": "reader", "inputs": [{{"type": "file"}}], "outputs": [{outputs}]}}"#)
        };
        let from = r#""inputs": [{"type": "tcp", "worker": "reader"}], "outputs": [{"type": "console"}]"#;
        let spare = format!(r#"{{"name": "spare", "spare": true, {from}}}"#);
        let writer = format!(r#"{{"name": "writer", {from}}}"#);
        assert_eq!(flaws(&format!("{}, {spare}, {writer}", reader("spread", "writer"))), []);
        let by_key = Flaw::Grows { from: "reader".into(), to: "spare".into(), how: How::ByKey };
        assert_eq!(flaws(&format!("{}, {spare}, {writer}", reader("by-key", "writer"))), [by_key]);
        let only = Flaw::OnlySpares { from: "reader".into(), group: "work".into() };
        assert_eq!(flaws(&format!("{}, {spare}", reader("spread", ""))), [only]);
        let alone = r#"{"name": "spare", "spare": true, "inputs": [{"type": "file"}], "outputs": []}"#;
        assert_eq!(flaws(alone), [Flaw::NobodyAsks("spare".into())]);
    }

    #[test]
    fn nothing_comes_from_nothing() {
        let silent = r#"{"name": "silent", "inputs": [], "outputs": []}"#;
        assert_eq!(flaws(silent), [Flaw::Silent { worker: "silent".into() }]);
        assert_eq!(flaws(&format!("{silent}, {silent}"))[0], Flaw::Doubled("silent".into()));
    }
}
