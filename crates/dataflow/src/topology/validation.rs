//! Validation of a topology; errors name the worker and the correction.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::{Distribution, JobTopology, WorkerSpec, is_valid_linger};

/// Limits on workers and connections.
#[derive(Clone, Copy, Debug)]
pub struct TopologyLimits {
    /// Streams that one worker reads. Each needs a connection, a descriptor and a window of memory.
    pub fan_in: usize,
    /// Streams that one worker writes.
    pub fan_out: usize,
    /// Workers of one job.
    pub workers: usize,
}

impl Default for TopologyLimits {
    fn default() -> Self {
        Self {
            fan_in: 512,
            fan_out: 512,
            workers: 10_000,
        }
    }
}

/// An error of a topology or graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum TopologyError {
    #[error("no workers: a job needs at least one")]
    NoWorkersAtAll,
    #[error("invalid name `{0}`: use 1 to 100 letters, digits, `-`, `_` and `.`")]
    InvalidName(String),
    #[error("duplicate name `{0}`: rename one of them")]
    DuplicateName(String),
    #[error("`{worker}` names `{other}`, which does not exist: add `{other}`, or correct the name")]
    UnknownWorker { worker: String, other: String },
    #[error(
        "`{from}` has an output to `{to}`, which has no input from it: add {{\"type\": \"tcp\", \"worker\": \"{from}\"}} to the inputs of `{to}`"
    )]
    MissingInput { from: String, to: String },
    #[error(
        "`{to}` has an input from `{from}`, which has no output to it: add {{\"type\": \"tcp\", \"worker\": \"{to}\"}} to the outputs of `{from}`"
    )]
    MissingOutput { from: String, to: String },
    #[error("duplicate edge from `{from}` to `{to}`: remove one")]
    DuplicateEdge { from: String, to: String },
    #[error(
        "invalid linger of the edge from `{from}` to `{to}`: expected seconds of at least 0, or null"
    )]
    InvalidLinger { from: String, to: String },
    #[error("cycle {}: remove one of these edges", .0.join(" -> "))]
    Cycle(Vec<String>),
    #[error("`{worker}` has no inputs: add one (of a custom type, when it makes its items itself)")]
    WithoutInputs { worker: String },
    #[error(
        "`{worker}` reads {has} streams, the limit is {limit}: use fewer workers before it, or a stage between that gathers in groups"
    )]
    FanIn {
        worker: String,
        has: usize,
        limit: usize,
    },
    #[error(
        "`{worker}` writes {has} streams, the limit is {limit}: use fewer workers after it, or a stage between that spreads in groups"
    )]
    FanOut {
        worker: String,
        has: usize,
        limit: usize,
    },
    #[error("the job has {has} workers, the limit is {limit}: use fewer")]
    TooManyWorkers { has: usize, limit: usize },
    #[error("`{0}` has 0 workers: it needs at least 1")]
    NoWorkers(String),
    #[error(
        "`{from}` has {left} workers and `{to}` has {right}: one-to-one needs the same number, or use `spread`"
    )]
    UnequalWorkers {
        from: String,
        to: String,
        left: usize,
        right: usize,
    },
    #[error("`{to}` has {workers} workers: gather needs exactly 1, or use `spread`")]
    GatherToMany { to: String, workers: usize },
    #[error(
        "`{stage}` has {workers} workers and at most {max_workers}: raise `max_workers`, or remove it"
    )]
    MaxBelowWorkers {
        stage: String,
        workers: usize,
        max_workers: usize,
    },
    #[error("`{to}` can scale out, so its edge from `{from}` cannot be {}: use `spread`", distribution.name())]
    ScalableTarget {
        from: String,
        to: String,
        distribution: Distribution,
    },
    #[error("`{from}` can scale out, so its edge to `{to}` cannot be one-to-one: use `spread`")]
    ScalableSource { from: String, to: String },
    #[error(
        "`{0}` can scale out, but reads no stream, so no worker can request it: remove `max_workers` or `spare`"
    )]
    UnreachableSpare(String),
    #[error(
        "all workers that `{from}` has for `{group}` are spare: one of them must run from the start"
    )]
    OnlySpares { from: String, group: String },
}

/// All errors of a topology or graph, one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyErrors(pub Vec<TopologyError>);

impl fmt::Display for TopologyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, flaw) in self.0.iter().enumerate() {
            write!(f, "{}{flaw}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for TopologyErrors {}

impl TopologyErrors {
    pub(crate) fn into_result(errors: Vec<TopologyError>) -> Result<(), Self> {
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Self(errors))
        }
    }
}

impl JobTopology {
    /// Checks that the topology can run.
    ///
    /// # Errors
    /// All errors: names, ends that do not match, cycles, fan-in.
    pub fn check_with(&self, limits: TopologyLimits) -> Result<(), TopologyErrors> {
        let mut errors = Vec::new();
        if self.workers.is_empty() {
            errors.push(TopologyError::NoWorkersAtAll);
        }
        if self.workers.len() > limits.workers {
            // Alone and first: the other checks are quadratic in places and would take long on a
            // huge file.
            return Err(TopologyErrors(vec![TopologyError::TooManyWorkers {
                has: self.workers.len(),
                limit: limits.workers,
            }]));
        }
        check_names(self.workers.iter().map(|worker| &*worker.name), &mut errors);
        for worker in &self.workers {
            self.check_worker(worker, &mut errors);
            check_counts(worker, limits, &mut errors);
        }
        // Only with matching ends: an edge to an unknown worker has no place in the graph.
        if errors.is_empty() {
            let edges = self
                .workers
                .iter()
                .map(|w| (&*w.name, w.target_streams().map(|to| &*to.worker).collect()))
                .collect();
            errors.extend(find_cycle(&edges).map(TopologyError::Cycle));
        }
        TopologyErrors::into_result(errors)
    }

    fn check_worker(&self, worker: &WorkerSpec, errors: &mut Vec<TopologyError>) {
        let name = || worker.name.clone();
        for target in worker.target_streams() {
            let to = || target.worker.clone();
            if !is_valid_linger(target.linger) {
                errors.push(TopologyError::InvalidLinger {
                    from: name(),
                    to: to(),
                });
            }
            match self.find_worker(&target.worker) {
                None => errors.push(TopologyError::UnknownWorker {
                    worker: name(),
                    other: to(),
                }),
                Some(other)
                    if !other
                        .source_streams()
                        .any(|from| from.worker == worker.name) =>
                {
                    errors.push(TopologyError::MissingInput {
                        from: name(),
                        to: to(),
                    });
                }
                Some(_) => {}
            }
        }
        for source in worker.source_streams() {
            let from = || source.worker.clone();
            match self.find_worker(&source.worker) {
                None => errors.push(TopologyError::UnknownWorker {
                    worker: name(),
                    other: from(),
                }),
                Some(other) if !other.target_streams().any(|to| to.worker == worker.name) => {
                    errors.push(TopologyError::MissingOutput {
                        from: from(),
                        to: name(),
                    });
                }
                Some(_) => {}
            }
        }
        check_duplicate_edges(worker, errors);
        check_spares(worker, errors);
    }
}

fn check_spares(worker: &WorkerSpec, errors: &mut Vec<TopologyError>) {
    let name = || worker.name.clone();
    if worker.spare && worker.source_streams().next().is_none() {
        errors.push(TopologyError::UnreachableSpare(name()));
    }
    let mut only_spares: BTreeMap<&str, bool> = BTreeMap::new();
    for to in worker.target_streams() {
        *only_spares
            .entry(to.group.as_deref().unwrap_or(&to.worker))
            .or_insert(true) &= to.pending;
        // A spare consumer changes the number of outputs at run time; only `spread` does not depend
        // on that number.
        if to.pending && to.distribution != Distribution::Spread {
            errors.push(TopologyError::ScalableTarget {
                from: name(),
                to: to.worker.clone(),
                distribution: to.distribution,
            });
        }
    }
    // Items of a group need a consumer from the start; with spares only, they would wait for a
    // request that may never come.
    let without_initial = only_spares.into_iter().filter(|(_, only)| *only);
    errors.extend(without_initial.map(|(to, _)| TopologyError::OnlySpares {
        from: name(),
        group: to.to_owned(),
    }));
}

fn check_duplicate_edges(worker: &WorkerSpec, errors: &mut Vec<TopologyError>) {
    let mut seen = HashSet::new();
    for to in worker
        .target_streams()
        .filter(|to| !seen.insert(&*to.worker))
    {
        errors.push(TopologyError::DuplicateEdge {
            from: worker.name.clone(),
            to: to.worker.clone(),
        });
    }
    let mut seen = HashSet::new();
    for from in worker
        .source_streams()
        .filter(|from| !seen.insert(&*from.worker))
    {
        errors.push(TopologyError::DuplicateEdge {
            from: from.worker.clone(),
            to: worker.name.clone(),
        });
    }
}

fn check_counts(worker: &WorkerSpec, limits: TopologyLimits, errors: &mut Vec<TopologyError>) {
    let name = || worker.name.clone();
    if worker.inputs.is_empty() {
        errors.push(TopologyError::WithoutInputs { worker: name() });
    }
    let (reads, writes) = (
        worker.source_streams().count(),
        worker.target_streams().count(),
    );
    if reads > limits.fan_in {
        errors.push(TopologyError::FanIn {
            worker: name(),
            has: reads,
            limit: limits.fan_in,
        });
    }
    if writes > limits.fan_out {
        errors.push(TopologyError::FanOut {
            worker: name(),
            has: writes,
            limit: limits.fan_out,
        });
    }
}

/// Reports invalid and duplicate names.
pub(crate) fn check_names<'a>(
    names: impl Iterator<Item = &'a str>,
    errors: &mut Vec<TopologyError>,
) {
    let mut seen = HashSet::new();
    for name in names {
        if !is_valid_name(name) {
            errors.push(TopologyError::InvalidName(name.to_owned()));
        }
        if !seen.insert(name) {
            errors.push(TopologyError::DuplicateName(name.to_owned()));
        }
    }
}

/// Names become file names, so they neither begin with a dot nor contain a slash.
fn is_valid_name(name: &str) -> bool {
    let fits = (1..=100).contains(&name.len()) && !name.starts_with('.');
    fits && name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Finds one cycle, with its first element repeated at the end. Without recursion: a chain may be
/// long.
pub(crate) fn find_cycle(edges: &HashMap<&str, Vec<&str>>) -> Option<Vec<String>> {
    let mut starts: Vec<&str> = edges.keys().copied().collect();
    // The map has no order; sorted, the same topology always reports the same cycle.
    starts.sort_unstable();
    let mut done = HashSet::new();
    starts
        .into_iter()
        .find_map(|start| find_cycle_from(start, edges, &mut done))
}

/// Depth-first search from `start`; `done` holds the names that lead to no cycle.
fn find_cycle_from<'a>(
    start: &'a str,
    edges: &HashMap<&'a str, Vec<&'a str>>,
    done: &mut HashSet<&'a str>,
) -> Option<Vec<String>> {
    let mut path = vec![(start, 0)];
    while let Some((name, next)) = path.last_mut() {
        let target = edges
            .get(name)
            .and_then(|targets| targets.get(*next))
            .copied();
        *next += 1;
        match target {
            None => {
                done.insert(*name);
                path.pop();
            }
            Some(target) => match path.iter().position(|(name, _)| *name == target) {
                Some(at) => {
                    let cycle = path[at..].iter().map(|(name, _)| *name).chain([target]);
                    return Some(cycle.map(str::to_owned).collect());
                }
                None if !done.contains(target) => path.push((target, 0)),
                None => {}
            },
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_errors(workers: &str) -> Vec<TopologyError> {
        let topology = JobTopology::from_json(&format!("{{\"workers\": [{workers}]}}")).unwrap();
        topology
            .check_with(TopologyLimits::default())
            .map_or_else(|errors| errors.0, |()| Vec::new())
    }

    const READER: &str = r#"{"name": "reader", "inputs": [{"type": "file", "path": "a.txt"}], "outputs": [{"type": "tcp", "worker": "writer"}]}"#;
    const WRITER: &str = r#"{"name": "writer", "inputs": [{"type": "tcp", "worker": "reader"}], "outputs": [{"type": "console"}]}"#;

    #[test]
    fn custom_port_types_keep_their_fields() {
        assert_eq!(check_errors(&format!("{READER}, {WRITER}")), []);
        let topology = JobTopology::from_json(&format!("{{\"workers\": [{READER}]}}")).unwrap();
        let crate::topology::WorkerPort::Custom(own) = &topology.workers[0].inputs[0] else {
            panic!("{topology:?}")
        };
        assert_eq!(
            (&*own.kind, own.fields["path"].as_str()),
            ("file", Some("a.txt"))
        );
    }

    #[test]
    fn both_ends_of_a_stream_must_name_each_other() {
        assert_eq!(
            check_errors(READER),
            [TopologyError::UnknownWorker {
                worker: "reader".into(),
                other: "writer".into()
            }]
        );
        let without_input = r#"{"name": "writer", "inputs": [{"type": "clock"}], "outputs": []}"#;
        assert_eq!(
            check_errors(&format!("{READER}, {without_input}")),
            [TopologyError::MissingInput {
                from: "reader".into(),
                to: "writer".into()
            }]
        );
        let without_output = r#"{"name": "reader", "inputs": [{"type": "file"}], "outputs": []}"#;
        assert_eq!(
            check_errors(&format!("{without_output}, {WRITER}")),
            [TopologyError::MissingOutput {
                from: "reader".into(),
                to: "writer".into()
            }]
        );
    }

    #[test]
    fn a_spare_needs_an_input_and_a_first_worker_in_its_group() {
        let reader = |distribution: &str, first: &str| {
            let to = |worker: &str| {
                format!(
                    r#"{{"type": "tcp", "worker": "{worker}", "distribution": "{distribution}", "group": "work"}}"#
                )
            };
            let outputs = format!(
                "{}{}",
                if first.is_empty() {
                    String::new()
                } else {
                    to(first) + ", "
                },
                to("spare")
            );
            format!(
                r#"{{"name": "reader", "inputs": [{{"type": "file"}}], "outputs": [{outputs}]}}"#
            )
        };
        let from =
            r#""inputs": [{"type": "tcp", "worker": "reader"}], "outputs": [{"type": "console"}]"#;
        let spare = format!(r#"{{"name": "spare", "spare": true, {from}}}"#);
        let writer = format!(r#"{{"name": "writer", {from}}}"#);
        assert_eq!(
            check_errors(&format!(
                "{}, {spare}, {writer}",
                reader("spread", "writer")
            )),
            []
        );
        let by_key = TopologyError::ScalableTarget {
            from: "reader".into(),
            to: "spare".into(),
            distribution: Distribution::ByKey,
        };
        assert_eq!(
            check_errors(&format!(
                "{}, {spare}, {writer}",
                reader("by-key", "writer")
            )),
            [by_key]
        );
        let only = TopologyError::OnlySpares {
            from: "reader".into(),
            group: "work".into(),
        };
        assert_eq!(
            check_errors(&format!("{}, {spare}", reader("spread", ""))),
            [only]
        );
        let alone =
            r#"{"name": "spare", "spare": true, "inputs": [{"type": "file"}], "outputs": []}"#;
        assert_eq!(
            check_errors(alone),
            [TopologyError::UnreachableSpare("spare".into())]
        );
    }

    #[test]
    fn a_worker_needs_an_input() {
        let silent = r#"{"name": "silent", "inputs": [], "outputs": []}"#;
        assert_eq!(
            check_errors(silent),
            [TopologyError::WithoutInputs {
                worker: "silent".into()
            }]
        );
        assert_eq!(
            check_errors(&format!("{silent}, {silent}"))[0],
            TopologyError::DuplicateName("silent".into())
        );
    }
}
