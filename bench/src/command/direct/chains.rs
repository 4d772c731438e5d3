//! Nested chains over two workers: calls by name, and through a gateway on the control node.
//!
//! A chain of one function has no call between functions, and no goal.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tokio::time::Instant;

use super::super::nodes::{delay_name, max_goal, on_first_machine};
use super::DirectArgs;
use crate::by_name::chain_fixture::{ChainFixture, ChainWay, MACHINES};
use crate::by_name::chain_program::ChainProgram;
use crate::compare::{BenchComparison, RoundSample};
use crate::cpu::CpuSnapshot;
use crate::load::connection::LoadConnection;
use crate::nodes::machines::MachineLab;
use crate::remote::BenchError;
use crate::tally::{RequestFailure, RequestTally};

const WAYS: [ChainWay; 3] = [ChainWay::ByName, ChainWay::Gateway, ChainWay::Nginx];
/// Lengths of the chains.
const LENGTHS: std::ops::RangeInclusive<usize> = 1..=8;
/// Goals of the time of a chain, relative to the gateway: without delay, and with it.
const GOAL_PLAIN: f64 = 0.6;
const GOAL_DELAYED: f64 = 0.5;

/// Measures the chains of a delay.
pub(super) fn measure(
    args: &DirectArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&MACHINES, delay)?;
    on_first_machine(&lab, async || {
        let fixture = ChainFixture::start(lab.machines(), ChainProgram::nested()?).await?;
        let names = WAYS.map(ChainWay::name);
        for length in LENGTHS {
            let case = format!("nested chain of {length}, {}", delay_name(delay));
            let one = async |variant: usize| {
                measure_chain(&fixture, WAYS[variant], length, args.repetitions()).await
            };
            comparison.measure_case(&case, &names, one).await?;
            if length > 1 {
                add_goal(comparison, &case, delay);
            }
        }
        Ok(())
    })
}

fn add_goal(comparison: &mut BenchComparison, case: &str, delay: Duration) {
    let [own, gateway, _] = WAYS.map(ChainWay::name);
    let name = format!("p50, {case}, by name/gateway");
    let goal = max_goal(|row| row.p50_us, chain_goal(delay));
    comparison.add_ratio(&name, case, own, gateway, goal);
}

/// Returns the goal of a chain's time, relative to the gateway.
pub(super) fn chain_goal(delay: Duration) -> f64 {
    match delay.is_zero() {
        true => GOAL_PLAIN,
        false => GOAL_DELAYED,
    }
}

/// Makes calls in sequence over one connection of the client. The first one is not counted.
async fn measure_chain(
    fixture: &ChainFixture,
    way: ChainWay,
    length: usize,
    repetitions: usize,
) -> Result<RoundSample, BenchError> {
    let (addr, path) = (fixture.client_addr(way), fixture.client_path(way, length));
    let opened = LoadConnection::open(addr).await;
    let mut connection = opened.map_err(|failure| format!("{}: {failure}", way.name()))?;
    // Not counted: the first call of a round opens connections between the nodes.
    let first = send_call(&mut connection, addr, &path, length).await?;
    first.map_err(|failure| format!("{}: {path}: {failure}", way.name()))?;
    let pids = fixture.pids(way);
    let (before, started) = (CpuSnapshot::read_now(&pids), Instant::now());
    let mut tally = RequestTally::default();
    for _ in 0..repetitions {
        let begun = Instant::now();
        let answer = send_call(&mut connection, addr, &path, length).await?;
        tally.record_outcome(answer.map(|()| begun.elapsed()));
    }
    let time = started.elapsed();
    let cpu = before.spent_until(&CpuSnapshot::read_now(&pids));
    if tally.failed_count() > 0 {
        eprintln!("{}: {:?}", way.name(), tally.failures_by_kind());
    }
    Ok(RoundSample::from_tally(&tally, time, cpu))
}

/// Sends a call, and checks that all functions took part.
async fn send_call(
    connection: &mut LoadConnection,
    addr: SocketAddr,
    path: &str,
    length: usize,
) -> Result<Result<(), RequestFailure>, BenchError> {
    // A connection of the client is kept: only calls between functions are new.
    let request = Request::get(path).header("host", addr.to_string());
    let request = request.body(Full::<Bytes>::default())?;
    let answer = connection.send_request(request).await;
    Ok(answer.and_then(|answer| {
        let answer = answer.require_success()?;
        let gathered: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        // The response has a time of each function that took part.
        match gathered["start"].as_array().map(Vec::len) == Some(length) {
            true => Ok(()),
            false => Err(RequestFailure::Body),
        }
    }))
}
