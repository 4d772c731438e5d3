//! TCP by name at a port of the callee's own, beside the same programs without nearpath.
//!
//! The goals compare with the same devices without nearpath's programs: two veth pairs and a namespace
//! that forwards. The veth pair alone tells what the devices of the hub cost.

use std::process::Command;
use std::time::Duration;

use super::super::nodes::{figure, max_goal};
use super::DirectArgs;
use super::path::{HUB, NamedPath, PAIR, measure_paths};
use crate::by_name::caller_task::{CallerTask, CallerWork};
use crate::by_name::control::RunningCaller;
use crate::by_name::deployed::{NamedFunctions, full_name};
use crate::by_name::plain_network::{PlainNetwork, PlainPath};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, RatioGoal};
use crate::remote::BenchError;

const NEARPATH: &str = "nearpath";
/// The caller, its callee, and a function that it may not call.
const CALLER: &str = "front";
const CALLEE: &str = "service";
const UNDECLARED: &str = "hidden";
/// Ports of the callee: for connections, for single bytes, and for bulk.
const CONNECT_PORT: u16 = 7000;
const ECHO_PORT: u16 = CONNECT_PORT + 1;
const SINK_PORT: u16 = CONNECT_PORT + 2;
const CONNECT_CASE: &str = "connect and close";
const ROUND_TRIP_CASE: &str = "round trip of 1 byte";
const BULK_CASE: &str = "bulk, MB";
const DENIED_CASE: &str = "denied connect";
/// Goal of a connection: microseconds more than without programs.
const GOAL_CONNECT_US: f64 = 1.0;
/// Goals of round trips and of bulk, relative to the path without programs.
const GOAL_ROUND_TRIP: f64 = 1.03;
const GOAL_BULK: f64 = 0.97;
/// Goal of a denied connection in microseconds.
const GOAL_DENIED_US: f64 = 2.0;
/// Time of the attempts that are compared with the metrics.
const COUNTED_WINDOW: Duration = Duration::from_millis(100);

/// Functions, and the same programs without nearpath.
struct SocketFixture {
    functions: NamedFunctions,
    caller: RunningCaller,
    pair: PlainNetwork,
    hub: PlainNetwork,
}

/// Measures all cases.
pub(super) async fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let fixture = SocketFixture::start().await?;
    let paths = fixture.paths();
    for (case, port, work) in [
        (CONNECT_CASE, CONNECT_PORT, CallerWork::Connect),
        (ROUND_TRIP_CASE, ECHO_PORT, CallerWork::RoundTrip),
        (BULK_CASE, SINK_PORT, CallerWork::Bulk),
    ] {
        measure_paths(args, &paths, (case, port, work), comparison).await?;
    }
    add_goals(comparison);
    fixture.measure_denied(args, comparison).await
}

fn add_goals(comparison: &mut BenchComparison) {
    let p50 = |variant| comparison.row_value(CONNECT_CASE, variant, |row| row.p50_us);
    // The same packets take the same way: the difference is the program.
    let more = p50(NEARPATH).unwrap_or(f64::NAN) - p50(HUB).unwrap_or(f64::NAN);
    let name = format!("{CONNECT_CASE}, µs more than {HUB}, p50");
    comparison.add_figure(figure(name, more, GOAL_CONNECT_US));
    let name = format!("p50, {ROUND_TRIP_CASE}, nearpath/{HUB}");
    let goal = max_goal(|row| row.p50_us, GOAL_ROUND_TRIP);
    comparison.add_ratio(&name, ROUND_TRIP_CASE, NEARPATH, HUB, goal);
    let name = format!("rate, {BULK_CASE}, nearpath/{HUB}");
    let goal = RatioGoal {
        value: |row| row.rps,
        better: BetterDirection::Higher,
        goal: GOAL_BULK,
    };
    comparison.add_ratio(&name, BULK_CASE, NEARPATH, HUB, goal);
}

impl SocketFixture {
    async fn start() -> Result<Self, BenchError> {
        let functions = NamedFunctions::start().await?;
        let command = format!("./nearpath-bench {}", callee_arguments().join(" "));
        for name in [CALLEE, UNDECLARED] {
            let spec = functions.program_spec(name, &command, CONNECT_PORT);
            functions.deploy_ready(&spec).await?;
        }
        let caller = functions.deploy_caller(CALLER, CALLEE).await?;
        Ok(Self {
            functions,
            caller,
            // Without a hub, for what a user could have by hand.
            pair: start_plain(PlainPath::Pair).await?,
            hub: start_plain(PlainPath::Hub).await?,
        })
    }

    fn paths(&self) -> [NamedPath<'_>; 3] {
        let platform = self.functions.server.pid();
        [
            NamedPath::by_name(NEARPATH, &self.caller, CALLEE, platform),
            NamedPath::plain(HUB, &self.hub),
            NamedPath::plain(PAIR, &self.pair),
        ]
    }

    /// Measures attempts without an edge, and whether the metrics have them.
    async fn measure_denied(
        &self,
        args: &DirectArgs,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let platform = self.functions.server.pid();
        // The caller has no name for it.
        let address = self.functions.virtual_address(UNDECLARED).await?;
        let path = NamedPath::by_name(NEARPATH, &self.caller, &address, platform);
        let case = (DENIED_CASE, CONNECT_PORT, CallerWork::Denied);
        // Alone: a network without nearpath denies nothing.
        measure_paths(args, &[path], case, comparison).await?;
        let p50 = comparison.row_value(DENIED_CASE, NEARPATH, |row| row.p50_us);
        let name = format!("{DENIED_CASE}, µs, p50");
        comparison.add_figure(figure(name, p50.unwrap_or(f64::NAN), GOAL_DENIED_US));
        comparison.add_figure(GoalRatio {
            name: format!("{DENIED_CASE}, counted with both names/attempts"),
            value: self.counted_share(&address).await?,
            better: BetterDirection::Higher,
            goal: 1.0,
        });
        Ok(())
    }

    /// Returns how many of some attempts the metrics have, as a share.
    async fn counted_share(&self, address: &str) -> Result<f64, BenchError> {
        let to = format!("{address}:{CONNECT_PORT}");
        let task = CallerTask::new(&to, CallerWork::Denied, Duration::ZERO, COUNTED_WINDOW);
        // Not from zero: the attempts of the measurement are counted, too.
        let before = self.denied_total().await?;
        let answer = self.caller.run_task(&task).await?;
        let counted = self.denied_total().await? - before;
        Ok(counted as f64 / answer.answered_count().max(1) as f64)
    }

    async fn denied_total(&self) -> Result<u64, BenchError> {
        let (caller, callee) = (full_name(CALLER), full_name(UNDECLARED));
        let metric = format!(
            "nearpath_edge_connections_denied_total{{caller=\"{caller}\",callee=\"{callee}\",\
             reason=\"not_allowed\"}}"
        );
        Ok(self.functions.server.read_total(&metric).await?)
    }
}

fn callee_arguments() -> [String; 3] {
    ["direct-callee", "--port", &CONNECT_PORT.to_string()].map(str::to_owned)
}

async fn start_plain(path: PlainPath) -> Result<PlainNetwork, BenchError> {
    let network = PlainNetwork::start(path, CONNECT_PORT, |_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(callee_arguments());
        Ok(command)
    });
    Ok(network.await?)
}
