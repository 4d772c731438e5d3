//! Redis as a function: commands by name, and the first one to a function that is scaled to zero.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::super::nodes::{figure, max_goal};
use super::DirectArgs;
use super::path::{HUB, NamedPath, PAIR, measure_paths};
use crate::by_name::caller_task::{CallerTask, CallerWork, RedisCommand};
use crate::by_name::control::RunningCaller;
use crate::by_name::deployed::{NamedFunctions, function_spec};
use crate::by_name::plain_network::{PlainNetwork, PlainPath};
use crate::compare::{BenchComparison, RoundSample, median_of};
use crate::peers::search_program;
use crate::remote::BenchError;
use crate::tally::RequestTally;

const NEARPATH: &str = "nearpath";
const CALLER: &str = "cart";
const CALLEE: &str = "store";
const REDIS_PORT: u16 = 6379;
const COMMANDS: [(&str, RedisCommand); 2] =
    [("GET", RedisCommand::Get), ("SET", RedisCommand::Set)];
const ZERO_CASE: &str = "Redis from zero";
const FIRST_REPLY: &str = "first reply";
const OWN_START: &str = "start of the instance";
/// Goal of p50 and of CPU time, relative to a veth pair.
const GOAL: f64 = 1.03;
/// Goal of a first reply: milliseconds more than the start takes.
const GOAL_WAKE_MS: f64 = 2.0;

/// Redis as a function, and without nearpath.
struct RedisFixture {
    functions: NamedFunctions,
    caller: RunningCaller,
    pair: PlainNetwork,
    hub: PlainNetwork,
    _image: TempDir,
}

/// Times of starts from zero.
#[derive(Default)]
struct ZeroStarts {
    replies: RequestTally,
    starts: RequestTally,
    /// Milliseconds of each first reply without those of the start.
    more_ms: Vec<f64>,
    failed: u64,
}

/// Measures all cases. Without Redis it is a remark below the table.
pub(super) async fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    if search_program("redis-server", &[]).is_none() {
        let reason = "redis-server is missing in PATH: run apt-get install redis-server";
        comparison.add_remark(format!("omitted: row redis: {reason}"));
        return Ok(());
    }
    let fixture = RedisFixture::start().await?;
    let paths = fixture.paths();
    for &connections in &args.connections {
        for (name, command) in COMMANDS {
            let case = format!("Redis {name}, connections {connections}");
            let work = CallerWork::Redis(command, connections);
            measure_paths(args, &paths, (&case, REDIS_PORT, work), comparison).await?;
            let goal = max_goal(|row| row.p50_us, GOAL);
            let ratio = format!("p50, {case}, nearpath/{PAIR}");
            comparison.add_ratio(&ratio, &case, NEARPATH, PAIR, goal);
        }
    }
    fixture.measure_from_zero(args, comparison).await
}

impl RedisFixture {
    async fn start() -> Result<Self, BenchError> {
        let (functions, image) = (NamedFunctions::start().await?, tempfile::tempdir()?);
        // A folder without files is no image.
        // The server comes from the machine, and takes its settings as arguments.
        std::fs::write(image.path().join("store.conf"), "")?;
        let command = "redis-server --port 6379 --save '' --protected-mode no";
        let spec = function_spec(CALLEE, image.path(), command, REDIS_PORT);
        functions.deploy_ready(&spec).await?;
        Ok(Self {
            caller: functions.deploy_caller(CALLER, CALLEE).await?,
            functions,
            pair: start_plain(PlainPath::Pair).await?,
            hub: start_plain(PlainPath::Hub).await?,
            _image: image,
        })
    }

    fn paths(&self) -> [NamedPath<'_>; 3] {
        let platform = self.functions.server.pid();
        [
            NamedPath::by_name(NEARPATH, &self.caller, CALLEE, platform),
            NamedPath::plain(PAIR, &self.pair),
            NamedPath::plain(HUB, &self.hub),
        ]
    }

    async fn measure_from_zero(
        &self,
        args: &DirectArgs,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let mut starts = ZeroStarts::default();
        for _ in 0..args.measure.rounds.max(1) * args.starts {
            self.start_from_zero(&mut starts).await?;
        }
        for (variant, tally) in [(FIRST_REPLY, &starts.replies), (OWN_START, &starts.starts)] {
            // Starts in sequence have no rate, and their CPU time is that of the row `start`.
            let sample = RoundSample {
                failed: starts.failed,
                rps: 0.0,
                ..RoundSample::from_tally(tally, Duration::from_secs(1), Duration::ZERO)
            };
            comparison.add_single(ZERO_CASE, variant, sample.into());
        }
        let more = median_of(starts.more_ms.into_iter());
        let name = format!("{ZERO_CASE}, ms of a first reply more than of the start, p50");
        comparison.add_figure(figure(name, more, GOAL_WAKE_MS));
        let name = format!("{ZERO_CASE}, failed first calls");
        comparison.add_figure(figure(name, starts.failed as f64, 0.0));
        Ok(())
    }

    /// Scales the function to zero, calls it, and adds the times.
    async fn start_from_zero(&self, starts: &mut ZeroStarts) -> Result<(), BenchError> {
        let server = &self.functions.server;
        server.scale_function(CALLEE, 0).await?;
        // An instance that still drains would answer at once.
        server.wait_available(CALLEE, 0).await?;
        let to = format!("{CALLEE}:{REDIS_PORT}");
        let task = CallerTask::new(&to, CallerWork::FirstPing, Duration::ZERO, Duration::ZERO);
        let answer = self.caller.run_task(&task).await?;
        if answer.failed_count() > 0 {
            eprintln!("{ZERO_CASE}: {:?}", answer.failures_by_kind());
            starts.failed += 1;
            return Ok(());
        }
        // The reply may come before the instance is in the description.
        let described = server.wait_available(CALLEE, 1).await?;
        let own = start_ms(&described).ok_or("the instance has no readyMs")?;
        starts.add(answer.p50_us / 1e3, own);
        Ok(())
    }
}

impl ZeroStarts {
    fn add(&mut self, reply_ms: f64, start_ms: f64) {
        let time = |ms: f64| Duration::from_secs_f64(ms.max(0.0) / 1e3);
        self.replies.record_outcome(Ok(time(reply_ms)));
        self.starts.record_outcome(Ok(time(start_ms)));
        self.more_ms.push(reply_ms - start_ms);
    }
}

/// Returns the wall time of the ready instance's start, in milliseconds.
fn start_ms(described: &Value) -> Option<f64> {
    let mut instances = described["instances"].as_array()?.iter();
    // Those of earlier rounds may still drain.
    let ready = instances.find(|instance| instance["state"] == "ready")?;
    ready["readyMs"].as_f64()
}

async fn start_plain(path: PlainPath) -> Result<PlainNetwork, BenchError> {
    let command = |addr: Ipv4Addr| {
        let mut command = Command::new("redis-server");
        command.args(["--port", &REDIS_PORT.to_string(), "--save", ""]);
        command.args(["--protected-mode", "no", "--bind", &addr.to_string()]);
        command.stdout(Stdio::null());
        Ok(command)
    };
    Ok(PlainNetwork::start(path, REDIS_PORT, command).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_start_is_that_of_the_ready_instance() {
        let described = json!({ "instances": [
            { "state": "draining", "readyMs": 1.5 },
            { "state": "ready", "readyMs": 2.5 },
        ] });
        assert_eq!(start_ms(&described), Some(2.5));
        assert_eq!(start_ms(&json!({ "instances": [] })), None);
    }
}
