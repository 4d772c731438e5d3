//! Many functions on other nodes: CPU time of a change, and memory of the tables, in one node.
//!
//! The other nodes are scripted: they speak the contract and run nothing. The memory is what the node
//! has more than before it had these functions, and before it had the states of the others. In the table
//! a "request" is one change, and p50 and p99 are the interval of changes.

use std::cell::RefCell;
use std::io;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::super::orders;
use super::{NodesArgs, figure, on_first_machine};
use crate::compare::{BenchComparison, RoundSample, median_of};
use crate::cpu::CpuSnapshot;
use crate::nodes::app_folder::{AppFolder, function_entry};
use crate::nodes::machines::{Machine, MachineLab};
use crate::nodes::node_process::{NodePlan, NodePorts, NodeProcess};
use crate::nodes::scripted_node::ScriptedNode;
use crate::remote::BenchError;
use crate::tally::RequestTally;

const MACHINES: [&str; 3] = ["m0", "s1", "s2"];
/// Interval of changes on all nodes: 20 a second.
const CHANGE_INTERVAL: Duration = Duration::from_millis(50);
/// Length of a measurement, in lengths of other rows: a change costs little.
const WINDOW_FACTOR: u32 = 5;
/// Time in which work of a start or a change ends.
const SETTLE_GRACE: Duration = Duration::from_secs(3);
const VARIANT: &str = "20 changes a second";
/// Goals: CPU time of a change and of a deployment in milliseconds, memory in MiB.
const GOAL_CHANGE_MS: f64 = 1.0;
const GOAL_DEPLOY_MS: f64 = 2.0;
const GOAL_MEMORY_MIB: f64 = 64.0;
/// Functions of a stack file, of at most 1 MiB.
const FILE_FUNCTIONS: usize = 1_000;
/// Deployments of a measurement.
const DEPLOYS: u64 = 50;

/// The measured node and the scripted ones.
struct ScaleFixture {
    node: NodeProcess,
    scripted: Vec<ScriptedNode>,
    /// Memory in bytes without these functions, with them, and with the states of other nodes.
    memory: [u64; 3],
}

/// Measures everything; no case has a delay.
pub(super) fn measure(
    args: &NodesArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&MACHINES, Duration::ZERO)?;
    on_first_machine(&lab, async || {
        measure_changes(args, lab.machines(), comparison).await?;
        if args.deployed > 0 {
            let kinds = (&["deploy"][..], GOAL_DEPLOY_MS);
            orders::measure_functions(comparison, args.deployed, DEPLOYS, kinds).await?;
        }
        Ok(())
    })
}

async fn measure_changes(
    args: &NodesArgs,
    machines: &[Machine],
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let (folder, count) = (tempfile::tempdir()?, args.functions);
    let list: Vec<_> = MACHINES
        .iter()
        .zip(machines)
        .map(|(name, one)| {
            (
                (*name).to_owned(),
                one.socket_addr(NodePorts::of_place(0).nodes),
            )
        })
        .collect();
    let app = AppFolder::create(&list)?;
    let fixture = ScaleFixture::start(&app, machines, (folder.path(), count)).await?;
    let case = format!("{count} functions, {} endpoints on other nodes", 2 * count);
    let window = args.measure.length() * WINDOW_FACTOR;
    let costs = RefCell::new(Vec::new());
    let one = async |_: usize| {
        let sample = fixture.measure(window, count).await?;
        costs.borrow_mut().push(sample.cpu_us_per_request / 1e3);
        Ok::<_, BenchError>(sample)
    };
    comparison.measure_case(&case, &[VARIANT], one).await?;
    let cost = median_of(costs.into_inner().into_iter());
    let name = format!("CPU of one change, ms, {case}");
    comparison.add_figure(figure(name, cost, GOAL_CHANGE_MS));
    fixture.add_memory(comparison, &case);
    Ok(())
}

impl ScaleFixture {
    /// Starts the nodes, and waits until the measured one has all states.
    async fn start(
        app: &AppFolder,
        machines: &[Machine],
        (image, count): (&Path, usize),
    ) -> Result<Self, BenchError> {
        std::fs::write(image.join("server"), "")?;
        // One function: a stack file without any is a fault.
        app.write_stack(&stack_of(image, 0..1))?;
        let plan = NodePlan {
            name: MACHINES[0],
            machine: &machines[0],
            ports: NodePorts::of_place(0),
            listen: Ipv4Addr::LOCALHOST,
            variables: &[],
        };
        let node = NodeProcess::start(app, &plan).await?;
        tokio::time::sleep(SETTLE_GRACE).await;
        let empty = resident_bytes(node.pid())?;
        eprintln!("declaring {count} functions");
        declare_functions(app, image, count)?;
        // By its log: a list of all functions would change the memory that is measured.
        let line = format!("applied functions={count} ");
        let is_declared = async || Ok(node.log_text()?.contains(&line));
        node.wait_state("all functions are declared", is_declared)
            .await?;
        tokio::time::sleep(SETTLE_GRACE).await;
        let declared = resident_bytes(node.pid())?;
        let scripted = start_scripted(app, machines, count).await?;
        for (name, other) in MACHINES[1..].iter().zip(&scripted) {
            let is_subscribed = async || Ok(other.is_subscribed());
            node.wait_state("it reads the state of others", is_subscribed)
                .await?;
            // By its log, as above: metrics of all functions would be more than their tables.
            let is_up = async || {
                let log = node.log_text()?;
                let mut lines = log.lines().filter(|line| line.contains("node is up"));
                Ok(lines.any(|line| line.contains(&format!("node={name}"))))
            };
            node.wait_state(&format!("node {name} is up"), is_up)
                .await?;
        }
        tokio::time::sleep(SETTLE_GRACE).await;
        let memory = [empty, declared, resident_bytes(node.pid())?];
        Ok(Self {
            node,
            scripted,
            memory,
        })
    }

    /// Measures the node's CPU time with changes, less that of an equal time without.
    async fn measure(&self, window: Duration, count: usize) -> Result<RoundSample, BenchError> {
        let idle = self.cpu_while(tokio::time::sleep(window)).await;
        let mut tally = RequestTally::default();
        let changes = async {
            let mut ticks = tokio::time::interval(CHANGE_INTERVAL);
            for number in 0..window.as_millis() / CHANGE_INTERVAL.as_millis() {
                ticks.tick().await;
                let function = fastrand::usize(..count);
                // Alternates, so that each change differs from the last state.
                let (node, ready) = (number % 2, fastrand::u64(2..1_000));
                self.scripted[usize::try_from(node).unwrap_or(0)].set_ready(function, ready);
                tally.record_outcome(Ok(CHANGE_INTERVAL));
            }
            ticks.tick().await;
        };
        let busy = self.cpu_while(changes).await;
        let own = busy.saturating_sub(idle);
        Ok(RoundSample::from_tally(&tally, window, own))
    }

    async fn cpu_while(&self, work: impl Future<Output = ()>) -> Duration {
        let pid = self.node.pid();
        let before = CpuSnapshot::read_now(&[pid]);
        work.await;
        before.process_spent(pid, &CpuSnapshot::read_now(&[pid]))
    }

    fn add_memory(&self, comparison: &mut BenchComparison, case: &str) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let [empty, declared, all] = self.memory;
        for (what, before) in [("functions and", empty), ("the", declared)] {
            let name = format!("memory of {what} states of other nodes, MiB, {case}");
            let value = mib(all.saturating_sub(before));
            comparison.add_figure(figure(name, value, GOAL_MEMORY_MIB));
        }
        comparison.add_remark(format!(
            "{case}: memory of the node {:.1} MiB without functions, {:.1} MiB with functions, {:.1} MiB \
             with the states of other nodes",
            mib(empty),
            mib(declared),
            mib(all)
        ));
    }
}

async fn start_scripted(
    app: &AppFolder,
    machines: &[Machine],
    count: usize,
) -> Result<Vec<ScriptedNode>, BenchError> {
    let mut started = Vec::new();
    for (name, machine) in MACHINES.iter().zip(machines).skip(1) {
        let functions = (0..count).map(|number| format!("{}.openfaas-fn", function_name(number)));
        started.push(ScriptedNode::start(app, (name, machine), functions.collect()).await?);
    }
    Ok(started)
}

fn function_name(number: usize) -> String {
    format!("function-{number}")
}

/// Writes all functions, in files that nodes read.
fn declare_functions(app: &AppFolder, image: &Path, count: usize) -> io::Result<()> {
    let mut from = 1;
    while from < count {
        let until = count.min(from + FILE_FUNCTIONS);
        let name = format!("app-{from}.yml");
        app.write_stack_file(&name, &stack_of(image, from..until))?;
        from = until;
    }
    Ok(())
}

/// Returns functions that run on the scripted nodes alone.
fn stack_of(image: &Path, numbers: Range<usize>) -> Value {
    let entry = function_entry(image, "./server", 5000, &MACHINES[1..]);
    let functions: Map<_, _> = numbers
        .map(|number| (function_name(number), entry.clone()))
        .collect();
    json!({ "functions": functions })
}

/// Reads the resident memory of a process (proc_pid_status(5)).
fn resident_bytes(pid: u32) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/status has no VmRSS")))
}
