//! A burst of calls of a chain of three functions from zero, and how instances share it.
//!
//! Each program returns a number of its own before the response of the next one. Shares count only calls
//! that began when all instances had answered: an instance that is ready later has fewer calls.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::nodes::figure;
use super::DirectArgs;
use crate::compare::{BenchComparison, RoundSample};
use crate::cpu::CpuSnapshot;
use crate::load::connection::LoadConnection;
use crate::peers::nearpath::NearpathServer;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;
use crate::tally::RequestTally;

const VARIANT: &str = "nearpath, by name";
const CASE: &str = "burst from zero";
/// Concurrent callers, and calls of all of them.
const CALLERS: usize = 10;
const CALLS: usize = 789;
/// Functions of the chain, and instances of each.
const LENGTH: usize = 3;
const REPLICAS: u64 = 3;
/// Goal of the largest share of an instance, relative to the smallest one.
const GOAL_SHARE: f64 = 1.3;

/// A chain that sleeps.
struct BurstFixture {
    server: NearpathServer,
    _handler: PlainHandler,
    _data: TempDir,
}

/// A call with an answer.
#[derive(Debug, Clone)]
struct AnsweredCall {
    began: Instant,
    ended: Instant,
    /// Instances of the chain's functions, in their order.
    instances: Vec<String>,
}

/// Measures bursts, and adds the goals over all of them.
pub(super) async fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let fixture = BurstFixture::start().await?;
    let (mut failed, mut largest) = (0, 1.0_f64);
    let one = async |_: usize| {
        let (sample, share) = fixture.measure_burst().await?;
        failed += sample.failed;
        largest = largest.max(share);
        Ok::<_, BenchError>(sample)
    };
    comparison.measure_case(CASE, &[VARIANT], one).await?;
    comparison.add_figure(figure(
        format!("{CASE}, calls without an answer"),
        failed as f64,
        0.0,
    ));
    let name = format!(
        "{CASE}, most/least calls of an instance in {} rounds",
        args.measure.rounds
    );
    comparison.add_figure(figure(name, largest, GOAL_SHARE));
    Ok(())
}

fn function_name(place: usize) -> String {
    format!("burst-{place}")
}

/// Returns the spec of a function that calls the next one by its name.
fn spec_of(handler: &PlainHandler, place: usize) -> Value {
    let next = (place + 1 < LENGTH).then(|| function_name(place + 1));
    // By name: the gateway decides for each call which instance gets it.
    let url = next.as_ref().map(|next| format!("http://{next}"));
    let mut spec = handler.spec(&function_name(place), url.as_deref());
    spec["envVars"]["bench_tell_instance"] = json!("yes");
    spec["annotations"] = json!({ "nearpath.io/calls": next.unwrap_or_default() });
    spec["labels"] = json!({
        // The same as the maximum: the autoscaler changes nothing in the burst.
        "com.openfaas.scale.min": REPLICAS.to_string(),
        "com.openfaas.scale.max": REPLICAS.to_string(),
        "com.openfaas.scale.zero": "true",
    });
    spec
}

impl BurstFixture {
    async fn start() -> Result<Self, BenchError> {
        let handler = PlainHandler::build(HandlerLanguage::Go)?;
        let data = tempfile::tempdir()?;
        let server = NearpathServer::start(data.path()).await?;
        for place in 0..LENGTH {
            server.deploy_function(&spec_of(&handler, place)).await?;
            server
                .wait_available(&function_name(place), REPLICAS)
                .await?;
        }
        Ok(Self {
            server,
            _handler: handler,
            _data: data,
        })
    }

    /// Returns a sample of all calls, and the largest ratio of two instances' calls.
    async fn measure_burst(&self) -> Result<(RoundSample, f64), BenchError> {
        for place in 0..LENGTH {
            let name = function_name(place);
            self.server.scale_function(&name, 0).await?;
            self.server.wait_available(&name, 0).await?;
        }
        let pids = [self.server.pid()];
        let (begun, before) = (Instant::now(), CpuSnapshot::read_now(&pids));
        let (left, calls) = (RefCell::new(CALLS), RefCell::new(Vec::new()));
        let tally = RefCell::new(RequestTally::default());
        let callers = (0..CALLERS).map(|_| self.call_while_left(&left, &calls, &tally));
        // On this one thread: a caller costs the chain little CPU time.
        futures_util::future::join_all(callers).await;
        let cpu = before.spent_until(&CpuSnapshot::read_now(&pids));
        let (tally, time) = (tally.into_inner(), begun.elapsed());
        if tally.failed_count() > 0 {
            eprintln!("{CASE}: {:?}", tally.failures_by_kind());
        }
        let sample = RoundSample::from_tally(&tally, time, cpu);
        Ok((sample, largest_share(&calls.into_inner())))
    }

    async fn call_while_left(
        &self,
        left: &RefCell<usize>,
        calls: &RefCell<Vec<AnsweredCall>>,
        tally: &RefCell<RequestTally>,
    ) {
        let mut connection = None;
        while *left.borrow() > 0 {
            // Before the call: it awaits, and other callers must not take the same one.
            *left.borrow_mut() -= 1;
            let began = Instant::now();
            let outcome = self.call_chain(&mut connection).await;
            let ended = Instant::now();
            let outcome = outcome.map(|instances| {
                calls.borrow_mut().push(AnsweredCall {
                    began,
                    ended,
                    instances,
                });
                ended - began
            });
            tally.borrow_mut().record_outcome(outcome);
        }
    }

    /// Calls the chain, and returns its instances.
    async fn call_chain(
        &self,
        connection: &mut Option<LoadConnection>,
    ) -> Result<Vec<String>, crate::tally::RequestFailure> {
        let mut open = match connection.take().filter(LoadConnection::is_open) {
            Some(open) => open,
            None => LoadConnection::open(self.server.addr()).await?,
        };
        let request = Request::post(format!("/function/{}", function_name(0)));
        let request = request
            .header("host", "bench")
            .body(Full::<Bytes>::default());
        let request = request.map_err(|_| crate::tally::RequestFailure::Generator)?;
        let answer = open.send_request(request).await?.require_success()?;
        *connection = Some(open);
        let text = String::from_utf8_lossy(&answer.body);
        let instances: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        match instances.len() == LENGTH {
            true => Ok(instances),
            false => Err(crate::tally::RequestFailure::Body),
        }
    }
}

/// Returns the largest ratio of the calls of two instances of a function. Only calls count that began when
/// every instance had answered.
fn largest_share(calls: &[AnsweredCall]) -> f64 {
    let mut first = BTreeMap::new();
    for call in calls {
        for instance in &call.instances {
            let seen = first.entry(instance.clone()).or_insert(call.ended);
            *seen = call.ended.min(*seen);
        }
    }
    let Some(all_answered) = first.values().max() else {
        return f64::NAN;
    };
    let expected = LENGTH * usize::try_from(REPLICAS).unwrap_or(usize::MAX);
    if first.len() != expected {
        eprintln!(
            "{CASE}: {} instances answered, expected {expected}",
            first.len()
        );
    }
    let late: Vec<_> = calls
        .iter()
        .filter(|call| call.began >= *all_answered)
        .collect();
    let ratios = (0..LENGTH).map(|place| {
        // Instances without late calls count, too.
        let all = calls.iter().map(|call| (&call.instances[place], 0.0));
        let mut counts: BTreeMap<_, f64> = all.collect();
        for call in &late {
            *counts.entry(&call.instances[place]).or_default() += 1.0;
        }
        largest_ratio(counts.values().copied())
    });
    ratios.fold(1.0, f64::max)
}

fn largest_ratio(counts: impl Iterator<Item = f64> + Clone) -> f64 {
    let most = counts.clone().fold(0.0, f64::max);
    most / counts.fold(f64::MAX, f64::min)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn shares_count_from_when_all_had_answered() {
        let start = Instant::now();
        let call = |millis: u64, own: &str| AnsweredCall {
            began: start + Duration::from_millis(millis),
            ended: start + Duration::from_millis(millis + 1),
            instances: vec![own.to_owned(), "b".to_owned(), "c".to_owned()],
        };
        // Two calls before the second instance has answered.
        let mut calls = vec![call(0, "a"), call(2, "a"), call(4, "z")];
        calls.extend([call(6, "a"), call(8, "z"), call(10, "a")]);
        assert_eq!(largest_share(&calls), 2.0);
    }
}
