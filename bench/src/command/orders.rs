//! `orders`: the cost of an order, by the number of deployed functions.
//!
//! In the table a "request" is one order: p50 and p99 are the times of its answer, and cpu is that of
//! the process `nearpath up` without instances. It includes what follows an answer: the start or the
//! end of an instance. All functions are scaled to zero, except those that the orders concern.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::BenchOutcome;
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, ROUNDS, RoundSample, median_of};
use crate::cpu::{CpuSnapshot, process_time, process_tree};
use crate::peers::nearpath::{self, NearpathServer};
use crate::tally::RequestTally;

const VARIANTS: [&str; 5] = ["deploy", "update", "wake", "sleep", "remove"];
/// Orders that are sent at once to deploy the functions: they share an fsync.
const CONCURRENT_DEPLOYS: usize = 64;
/// Time for which processes must have come and gone: the platform's work ends after theirs.
const SETTLE_INTERVAL: Duration = Duration::from_millis(500);
/// Time in which instances start or end.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time of a measurement without orders.
const IDLE_WINDOW: Duration = Duration::from_secs(5);
/// Goal: CPU time of an idle process, in percent of a core.
const GOAL_IDLE_PERCENT: f64 = 0.5;

/// Options of `orders`.
#[derive(clap::Args)]
pub(crate) struct OrdersArgs {
    /// Set the rounds of each kind of order
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the numbers of deployed functions, one case each
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000")]
    functions: Vec<usize>,

    /// Set the number of orders per measurement
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=500))]
    orders: u64,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: OrdersArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("orders", args.rounds);
    for &functions in &args.functions {
        // The trees of the state grow by a level.
        let goal_ms = if functions <= 1_000 { 2.0 } else { 3.0 };
        let kinds = (&VARIANTS[..], goal_ms);
        measure_functions(&mut comparison, functions, args.orders, kinds).await?;
    }
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Measures some kinds of [`VARIANTS`], with a goal for the CPU time of each, in milliseconds.
pub(super) async fn measure_functions(
    comparison: &mut BenchComparison,
    functions: usize,
    orders: u64,
    (kinds, goal_ms): (&[&'static str], f64),
) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let server = NearpathServer::start(folder.path()).await?;
    let orders = OrderTarget {
        names: (0..orders)
            .map(|number| format!("order-{number}"))
            .collect(),
        server,
    };
    orders.deploy_sleeping(functions).await?;
    let case = format!("{functions} functions");
    let idle = orders.idle_percent().await;
    let costs = RefCell::new(BTreeMap::<usize, Vec<f64>>::new());
    let one = async |variant: usize| {
        let sample = orders.measure_orders(kinds[variant]).await?;
        let mut costs = costs.borrow_mut();
        costs
            .entry(variant)
            .or_default()
            .push(sample.cpu_us_per_request / 1e3);
        Ok::<_, io::Error>(sample)
    };
    comparison.measure_case(&case, kinds, one).await?;
    add_goals(comparison, &case, (kinds, goal_ms), costs.into_inner());
    comparison.add_figure(lower(
        format!("CPU without orders, % of a core, {case}"),
        idle,
        GOAL_IDLE_PERCENT,
    ));
    Ok(())
}

/// Adds a goal for each kind of order.
fn add_goals(
    comparison: &mut BenchComparison,
    case: &str,
    (kinds, goal_ms): (&[&str], f64),
    costs: BTreeMap<usize, Vec<f64>>,
) {
    for (variant, costs) in costs {
        let name = format!("CPU of one {}, ms, {case}", kinds[variant]);
        comparison.add_figure(lower(name, median_of(costs.into_iter()), goal_ms));
    }
}

fn lower(name: String, value: f64, goal: f64) -> GoalRatio {
    GoalRatio {
        name,
        value,
        better: BetterDirection::Lower,
        goal,
    }
}

/// A server, and the functions that the orders concern.
struct OrderTarget {
    server: NearpathServer,
    names: Vec<String>,
}

impl OrderTarget {
    /// Deploys functions and scales them to zero.
    async fn deploy_sleeping(&self, functions: usize) -> io::Result<()> {
        eprintln!("deploying {functions} functions");
        let deploys = (0..functions).map(|number| async move {
            let name = format!("sleeping-{number}");
            self.server.deploy_function(&spec_of(&name, 0)?).await?;
            self.server.scale_function(&name, 0).await
        });
        stream::iter(deploys)
            .buffer_unordered(CONCURRENT_DEPLOYS)
            .try_collect::<()>()
            .await?;
        self.wait_instances(0).await
    }

    /// Returns the CPU time without orders, in percent of a core.
    async fn idle_percent(&self) -> f64 {
        // The store copies its log into the database after a second.
        tokio::time::sleep(IDLE_WINDOW / 2).await;
        let pid = self.server.pid();
        let before = CpuSnapshot::read_now(&[pid]);
        tokio::time::sleep(IDLE_WINDOW).await;
        let spent = before.process_spent(pid, &CpuSnapshot::read_now(&[pid]));
        spent.as_secs_f64() / IDLE_WINDOW.as_secs_f64() * 100.0
    }

    /// Sends one order after the other, each for another function.
    async fn measure_orders(&self, variant: &str) -> io::Result<RoundSample> {
        // Every measurement begins with functions in the state that its orders change.
        let (before, after) = match variant {
            "deploy" => (None, Some(1)),
            "update" | "wake" => (Some(0), Some(1)),
            "sleep" => (Some(1), Some(0)),
            _ => (Some(0), None),
        };
        self.bring_to(before).await?;
        let (started, cpu) = (Instant::now(), process_time(self.server.pid())?);
        let mut tally = RequestTally::default();
        for name in &self.names {
            let sent = Instant::now();
            self.send_order(variant, name).await?;
            tally.record_outcome(Ok(sent.elapsed()));
        }
        let took = started.elapsed();
        self.wait_instances(after.unwrap_or(0)).await?;
        let cpu = process_time(self.server.pid())?.saturating_sub(cpu);
        self.bring_to(None).await?;
        Ok(RoundSample::from_tally(&tally, took, cpu))
    }

    async fn send_order(&self, variant: &str, name: &str) -> io::Result<()> {
        match variant {
            "deploy" => self.server.deploy_function(&spec_of(name, 0)?).await,
            "update" => self.server.update_function(&spec_of(name, 1)?).await,
            "wake" => self.server.scale_function(name, 1).await,
            "sleep" => self.server.scale_function(name, 0).await,
            _ => self.server.order_removal(name).await.map(drop),
        }
    }

    /// Brings the functions to this number of instances each; `None` removes them.
    async fn bring_to(&self, instances: Option<usize>) -> io::Result<()> {
        for name in &self.names {
            match instances {
                None => drop(self.server.order_removal(name).await?),
                Some(instances) => {
                    self.server.deploy_function(&spec_of(name, 0)?).await?;
                    self.server.scale_function(name, instances as u64).await?;
                }
            }
        }
        self.wait_instances(instances.unwrap_or(0)).await
    }

    /// Waits until each function has so many instances, without a question to the server.
    async fn wait_instances(&self, each: usize) -> io::Result<()> {
        let expected = each * self.names.len();
        let (end, mut settled) = (Instant::now() + SETTLE_TIMEOUT, Instant::now());
        while settled.elapsed() < SETTLE_INTERVAL {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let running = count_instances(self.server.pid());
            if running != expected {
                settled = Instant::now();
            }
            if Instant::now() > end {
                let text = format!("{running} instances run instead of {expected}");
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }
}

/// Counts the watchdogs below a process: each is one instance.
fn count_instances(server: u32) -> usize {
    let is_watchdog = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        // The kernel cuts names to 15 bytes (proc_pid_comm(5)).
        name.is_ok_and(|name| name.starts_with("nearpath-watchd"))
    };
    process_tree(&[server])
        .iter()
        .filter(|pid| is_watchdog(pid))
        .count()
}

/// Returns the spec of a function; `version` is a variable of its environment.
fn spec_of(name: &str, version: u32) -> io::Result<Value> {
    let mut spec = nearpath::cat_spec(name)?;
    spec["envVars"]["version"] = json!(version.to_string());
    Ok(spec)
}
