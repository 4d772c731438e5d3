//! HTTP by name on an edge with `balance: connection`, beside the same two programs without nearpath.
//!
//! The callee is unmodified. In an instance it listens at 127.0.0.1 alone; without nearpath it must listen
//! at the address that its caller reaches.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::super::nodes::max_goal;
use super::DirectArgs;
use super::path::{HUB, NamedPath, PAIR, measure_paths};
use crate::by_name::caller_task::{CallerTask, CallerWork};
use crate::by_name::control::RunningCaller;
use crate::by_name::deployed::NamedFunctions;
use crate::by_name::plain_network::{PlainNetwork, PlainPath};
use crate::compare::BenchComparison;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;

const STRAIGHT: &str = "nearpath, balance: connection";
const BY_GATEWAY: &str = "nearpath, balance: request";
/// Callers of the two variants, and their callee.
const STRAIGHT_CALLER: &str = "front-connection";
const GATEWAY_CALLER: &str = "front-request";
const CALLEE: &str = "back";
/// Port of HTTP by name.
const HTTP_PORT: u16 = 80;
/// Time of the calls that show which path is taken.
const PROBE_WINDOW: Duration = Duration::from_millis(50);
/// Goal of CPU time and p50 of all variants by name without a gateway.
const GOAL: f64 = 1.05;

/// Functions with callers of both kinds of edges.
struct ConnectionFixture {
    functions: NamedFunctions,
    straight: RunningCaller,
    by_gateway: RunningCaller,
    pair: PlainNetwork,
    hub: PlainNetwork,
}

/// Measures the case of each number of connections.
pub(super) async fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let fixture = ConnectionFixture::start().await?;
    let paths = fixture.paths(args);
    for &connections in &args.connections {
        let case = format!("HTTP by name, connections {connections}");
        let work = CallerWork::Http(connections);
        measure_paths(args, &paths, (&case, HTTP_PORT, work), comparison).await?;
        add_goals(comparison, &case);
    }
    Ok(())
}

fn add_goals(comparison: &mut BenchComparison, case: &str) {
    let name = |figure: &str| format!("{figure}, {case}, balance: connection/{PAIR}");
    let cpu = max_goal(|row| row.cpu_us_per_request, GOAL);
    comparison.add_ratio(&name("CPU of all processes"), case, STRAIGHT, PAIR, cpu);
    let p50 = max_goal(|row| row.p50_us, GOAL);
    comparison.add_ratio(&name("p50"), case, STRAIGHT, PAIR, p50);
}

impl ConnectionFixture {
    async fn start() -> Result<Self, BenchError> {
        let handler = PlainHandler::build(HandlerLanguage::C)?;
        let functions = NamedFunctions::start().await?;
        functions.deploy_ready(&handler.spec(CALLEE, None)).await?;
        let calls = format!("{CALLEE} balance=connection");
        let straight = functions.deploy_caller(STRAIGHT_CALLER, &calls).await?;
        // The same callee: only the edge differs.
        let by_gateway = functions.deploy_caller(GATEWAY_CALLER, CALLEE).await?;
        let edge = (STRAIGHT_CALLER, CALLEE);
        // Calls by the gateway would be measured under the wrong name.
        functions
            .wait_straight(edge, async || call_once(&straight).await)
            .await?;
        Ok(Self {
            pair: start_plain(PlainPath::Pair, &handler).await?,
            hub: start_plain(PlainPath::Hub, &handler).await?,
            functions,
            straight,
            by_gateway,
        })
    }

    fn paths(&self, args: &DirectArgs) -> [NamedPath<'_>; 4] {
        let platform = self.functions.server.pid();
        let by_name =
            |name, caller| NamedPath::by_name(name, caller, CALLEE, platform).settling(args.settle);
        [
            by_name(STRAIGHT, &self.straight),
            by_name(BY_GATEWAY, &self.by_gateway),
            NamedPath::plain(PAIR, &self.pair),
            NamedPath::plain(HUB, &self.hub),
        ]
    }
}

async fn start_plain(path: PlainPath, handler: &PlainHandler) -> Result<PlainNetwork, BenchError> {
    let command =
        |addr: Ipv4Addr| Ok(handler.command_at_address(SocketAddr::from((addr, HTTP_PORT))));
    Ok(PlainNetwork::start(path, HTTP_PORT, command).await?)
}

/// Makes some calls over one connection.
async fn call_once(caller: &RunningCaller) -> std::io::Result<()> {
    let to = format!("{CALLEE}:{HTTP_PORT}");
    let task = CallerTask::new(&to, CallerWork::Http(1), Duration::ZERO, PROBE_WINDOW);
    caller.run_task(&task).await.map(drop)
}
