//! Time from a ready instance on one machine to the moment at which each other machine may call it.
//!
//! Instances are killed one after the other, and the node replaces them: an update would start the new
//! instance before the old one ends, so that other nodes see no difference.
//!
//! The clocks of all machines are one. The node of the instance logs "instance is ready", and each other
//! node "routes: instances of another node", when its gateway has the route. Both have microseconds, at
//! `NEARPATH_LOG=debug` for these two modules.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};

use super::{delay_name, figure, on_first_machine};
use crate::compare::{BenchComparison, RoundSample};
use crate::nodes::app_folder::function_entry;
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::node_process::NodeProcess;
use crate::nodes::node_set::{BETWEEN_NODES, NodeRole, NodeSet};
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;
use crate::tally::RequestTally;

/// Port of the handlers in their instances.
const HANDLER_PORT: u16 = 5000;
/// Filter of logs with the two lines.
const LOG_FILTER: &str = "info,nearpath_node::agent=debug,nearpath_server::peers=debug";
pub(in super::super) const READY_TEXT: &str = "instance is ready";
const ROUTE_TEXT: &str = "routes: instances of another node";
const VARIANT: &str = "nearpath";
/// Goals in microseconds. The second one is for a network without delay.
const GOAL_P50_US: f64 = 2_000.0;
const GOAL_P99_US: f64 = 10_000.0;
const MACHINES: [&str; 4] = ["m0", "m1", "m2", "m3"];

/// Functions on the second machine whose instances are all replaced at once.
pub(super) struct RollingFunctions {
    nodes: NodeSet,
    names: Vec<String>,
    command: String,
    image: std::path::PathBuf,
}

/// Measures the case of a delay.
pub(in super::super) fn measure(
    starts: usize,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&MACHINES, delay)?;
    on_first_machine(&lab, async || {
        let handler = PlainHandler::build(HandlerLanguage::C)?;
        let functions = RollingFunctions::start(lab.machines(), &handler, starts).await?;
        let case = format!("instance ready, {}", delay_name(delay));
        let mut total = RequestTally::default();
        let one = async |_: usize| {
            let tally = functions.measure_starts().await?;
            total.merge(&tally);
            let none = Duration::ZERO;
            Ok::<_, BenchError>(RoundSample::from_tally(
                &tally,
                Duration::from_secs(1),
                none,
            ))
        };
        comparison.measure_case(&case, &[VARIANT], one).await?;
        add_goals(comparison, &case, &total, delay);
        Ok(())
    })
}

/// Adds goals over the instances of all rounds: a single round has too few for a p99.
fn add_goals(comparison: &mut BenchComparison, case: &str, total: &RequestTally, delay: Duration) {
    let one_way = delay.as_secs_f64() * 1e6;
    for (name, quantile, goal) in [
        ("p50", 0.5, GOAL_P50_US),
        ("p99", 0.99, GOAL_P99_US + one_way),
    ] {
        let name = format!("{name} until all nodes may call, ms, {case}");
        let value = total.latency_us(quantile);
        comparison.add_figure(figure(name, value / 1e3, goal / 1e3));
    }
}

impl RollingFunctions {
    /// Starts a node on each machine, and waits until the first one may call all functions.
    pub(super) async fn start(
        machines: &[Machine],
        handler: &PlainHandler,
        count: usize,
    ) -> Result<Self, BenchError> {
        let names: Vec<_> = (0..count)
            .map(|number| format!("rolling-{number}"))
            .collect();
        let (command, image) = (handler.command_line(HANDLER_PORT), handler.folder());
        let stack = stack_of(&names, (image, &command), 0);
        let roles: Vec<_> = MACHINES
            .iter()
            .zip(machines)
            .map(|(name, machine)| NodeRole {
                variables: vec![("NEARPATH_LOG", LOG_FILTER.to_owned())],
                ..NodeRole::new(name, machine, 0)
            })
            .collect();
        let nodes = NodeSet::start(&roles, &stack).await?;
        for name in names.iter().map(String::as_str).chain(["steady"]) {
            nodes.node("m1")?.wait_available(name).await?;
            nodes
                .wait_callable(nodes.entry(), name, &BETWEEN_NODES)
                .await?;
        }
        Ok(Self {
            nodes,
            names,
            command,
            image: image.to_owned(),
        })
    }

    pub(super) fn nodes(&self) -> &NodeSet {
        &self.nodes
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Replaces all instances, and waits until only new ones run.
    pub(super) async fn replace_all(&self, version: u64) -> Result<(), BenchError> {
        let before: BTreeSet<_> = self.handler_pids().into_iter().collect();
        let stack = stack_of(&self.names, (&self.image, &self.command), version);
        self.nodes.app.write_stack(&stack)?;
        let node = self.nodes.node("m1")?;
        let is_replaced = async || {
            let now: BTreeSet<_> = self.handler_pids().into_iter().collect();
            // The instance of `steady` stays.
            Ok(now.len() == before.len() && now.intersection(&before).count() == 1)
        };
        node.wait_state("all instances are replaced", is_replaced)
            .await?;
        for name in &self.names {
            node.wait_available(name).await?;
        }
        Ok(())
    }

    fn handler_pids(&self) -> Vec<u32> {
        self.nodes.handler_pids("./bench-handler")
    }

    /// Kills one instance after the other, each of which the node replaces. Returns, for each new one,
    /// the time until all other nodes may call it.
    async fn measure_starts(&self) -> Result<RequestTally, BenchError> {
        let own = self.nodes.node("m1")?;
        let earlier = ready_events(own)?.len();
        for pid in self.handler_pids() {
            self.kill_instance(pid).await?;
        }
        // The last lines of other nodes: a moment after the instances run.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let others = self.nodes.nodes.iter().filter(|node| node.name != "m1");
        let routes: Vec<_> = others.map(route_events).collect::<Result<_, _>>()?;
        let mut tally = RequestTally::default();
        for event in ready_events(own)?.into_iter().skip(earlier) {
            let seen = routes.iter().map(|routes| first_after(routes, &event));
            let seen: Option<Vec<u64>> = seen.collect();
            let last = seen.and_then(|seen| seen.into_iter().max());
            let last = last.ok_or_else(|| format!("a node never had {event:?}"))?;
            tally.record_outcome(Ok(Duration::from_micros(last - event.micros)));
        }
        Ok(tally)
    }

    /// Kills the program of an instance, and waits for that of the next one.
    async fn kill_instance(&self, pid: u32) -> Result<(), BenchError> {
        let before = self.handler_pids().len();
        let raw = Pid::from_raw(pid.cast_signed()).ok_or("process 0")?;
        kill_process(raw, Signal::KILL)?;
        let is_replaced = async || {
            let now = self.handler_pids();
            Ok(now.len() == before && !now.contains(&pid))
        };
        let node = self.nodes.node("m1")?;
        node.wait_state("a killed instance is replaced", is_replaced)
            .await?;
        for name in &self.names {
            node.wait_available(name).await?;
        }
        Ok(())
    }
}

/// Returns a stack with these functions, of a version, and the function `steady`, which never changes.
fn stack_of(names: &[String], (image, command): (&std::path::Path, &str), version: u64) -> Value {
    let entry = || function_entry(image, command, HANDLER_PORT, &["m1"]);
    let versioned = |name: &String| {
        let mut entry = entry();
        entry["environment"]["version"] = json!(version.to_string());
        (name.clone(), entry)
    };
    let mut functions: Map<_, _> = names.iter().map(versioned).collect();
    functions.insert("steady".to_owned(), entry());
    json!({ "functions": functions })
}

/// A line of a node's log about a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct LogEvent {
    pub(in super::super) function: String,
    /// Microseconds since midnight, UTC.
    pub(in super::super) micros: u64,
}

fn ready_events(node: &NodeProcess) -> io::Result<Vec<LogEvent>> {
    Ok(parse_events(&node.log_text()?, READY_TEXT))
}

fn route_events(node: &NodeProcess) -> io::Result<BTreeMap<String, Vec<u64>>> {
    let mut by_function = BTreeMap::<String, Vec<u64>>::new();
    for event in parse_events(&node.log_text()?, ROUTE_TEXT) {
        by_function
            .entry(event.function)
            .or_default()
            .push(event.micros);
    }
    Ok(by_function)
}

fn first_after(routes: &BTreeMap<String, Vec<u64>>, event: &LogEvent) -> Option<u64> {
    let times = routes.get(&event.function)?;
    times.iter().copied().find(|micros| *micros >= event.micros)
}

/// Returns the lines of a log with this text.
pub(in super::super) fn parse_events(log: &str, text: &str) -> Vec<LogEvent> {
    let lines = log.lines().filter(|line| line.contains(text));
    lines.filter_map(parse_event).collect()
}

/// Parses `2026-01-01T10:00:00.123456Z DEBUG … function=NAME …`.
fn parse_event(line: &str) -> Option<LogEvent> {
    let time = line.split_whitespace().next()?.split_once('T')?.1;
    let mut parts = time.trim_end_matches('Z').splitn(3, ':');
    let [hours, minutes] = [parts.next()?, parts.next()?].map(|part| part.parse::<u64>().ok());
    let (seconds, fraction) = parts.next()?.split_once('.')?;
    let seconds = (hours? * 60 + minutes?) * 60 + seconds.parse::<u64>().ok()?;
    let micros = fraction.get(..6)?.parse::<u64>().ok()?;
    let function = line.split_once("function=")?.1.split_whitespace().next()?;
    Some(LogEvent {
        function: function.to_owned(),
        micros: seconds * 1_000_000 + micros,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_functions_of_lines() {
        let log = "2026-11-29T01:02:03.000004Z DEBUG instance is ready function=a.openfaas-fn instance=7\n\
                   2026-11-29T01:02:03.000009Z  INFO something else function=a\n";
        let wanted = LogEvent {
            function: "a.openfaas-fn".to_owned(),
            micros: 3_723_000_004,
        };
        assert_eq!(parse_events(log, READY_TEXT), [wanted]);
        assert_eq!(
            parse_events("no time: instance is ready function=a", READY_TEXT),
            []
        );
    }
}
