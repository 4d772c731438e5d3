//! `chaos`: constant load while things happen. Every act says which requests it may cost; all others have to succeed.
//!
//! | act | what happens | what it may cost |
//! | --- | --- | --- |
//! | scale | 1 → 5 → 1 → 0 → 1 instances | nothing |
//! | kill | one of three instances is killed with -9 every second | requests inside the killed one |
//! | restart | `nearpath up` ends in good order and starts again | requests sent between the two |

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Outcome, rate, seconds};
use crate::compare::{Better, Comparison, Ratio, Sample};
use crate::cpu::Moment;
use crate::load::Template;
use crate::load::closed::Reuse;
use crate::load::open::{self, Done};
use crate::load::schedule::Schedule;
use crate::peers::nearpath::{self, NearpathServer};
use crate::tally::{Failure, Tally};

const FUNCTION: &str = "chaos";

/// Options of `chaos`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests a second
    #[arg(long, default_value = "200", value_parser = rate)]
    rate: f64,

    /// How long each act lasts, in seconds; at least 5
    #[arg(long, default_value = "15", value_parser = seconds)]
    duration: Duration,
}

/// What an act may cost.
enum Cost {
    /// Requests that were inside an instance when it was killed.
    Inside,
    /// Requests under way at any moment of these spans, since the act's start.
    During(Vec<(Duration, Duration)>),
}

impl Cost {
    fn allows(&self, done: &Done) -> bool {
        match (self, &done.outcome) {
            (Self::Inside, Err(Failure::Status(_, reason))) => {
                reason == "instance_died" || reason == "response_cut"
            }
            (Self::During(spans), Err(_)) => spans
                .iter()
                .any(|(from, to)| done.intended <= *to && *from <= done.ended),
            _ => false,
        }
    }
}

/// Exit code 1 when a request failed that should not have.
pub(crate) async fn run(args: Args) -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut house = NearpathServer::start(folder.path()).await?;
    house.deploy(&nearpath::python(FUNCTION)?).await?;
    house.until_available(FUNCTION, 1).await?;
    let mut comparison = Comparison::new("chaos", 1);
    for act in ["scale", "kill", "restart"] {
        let (done, cost, cpu) = play(act, &mut house, &args).await?;
        let sample = Sample::of(&open::tally(&done), args.duration, cpu);
        comparison
            .case(act, &["nearpath"], async |_| Ok::<_, io::Error>(sample))
            .await?;
        comparison.figure(verdict(act, &done, &cost));
    }
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One act: the load and the trouble, side by side.
async fn play(
    act: &str,
    house: &mut NearpathServer,
    args: &Args,
) -> io::Result<(Vec<Done>, Cost, Duration)> {
    let start = Instant::now();
    let template = Template {
        method: Method::POST,
        ..Template::get(house.addr(), "/function/chaos").map_err(io::Error::other)?
    };
    let (pid, before) = (house.pid(), Moment::now(&[house.pid()]));
    let load = open::run(
        &template,
        Schedule::new(args.rate, args.duration),
        Reuse::KeepAlive,
        start,
    );
    let trouble = async {
        match act {
            "scale" => scale(house, start, args.duration).await,
            "kill" => kill(house, start, args.duration).await,
            _ => restart(house, start, args.duration).await,
        }
    };
    let (done, cost) = tokio::join!(load, trouble);
    let before = if house.pid() == pid {
        before
    } else {
        Moment::default()
    }; // after a restart: what the new one spent
    Ok((done?, cost?, before.until(&Moment::now(&[house.pid()]))))
}

async fn scale(house: &NearpathServer, start: Instant, length: Duration) -> io::Result<Cost> {
    for (step, replicas) in (1..).zip([5, 1, 0, 1]) {
        sleep_until(start + length * step / 5).await;
        house.scale(FUNCTION, replicas).await?;
    }
    house.until_available(FUNCTION, 1).await?;
    Ok(Cost::During(Vec::new()))
}

async fn kill(house: &NearpathServer, start: Instant, length: Duration) -> io::Result<Cost> {
    house.scale(FUNCTION, 3).await?;
    house.until_available(FUNCTION, 3).await?;
    while start.elapsed() + Duration::from_secs(2) < length {
        let (_, described) = house.describe(FUNCTION).await?;
        if let Some(pid) = ready_pid(&described) {
            let _ = kill_process(pid, Signal::KILL); // it may have ended by itself
        }
        sleep(Duration::from_secs(1)).await;
    }
    house.until_available(FUNCTION, 3).await?;
    Ok(Cost::Inside)
}

/// The watchdog of a ready instance: the first one, which is the oldest.
fn ready_pid(described: &Value) -> Option<Pid> {
    let mut instances = described["instances"].as_array()?.iter();
    let ready = instances.find(|instance| instance["state"] == "ready")?;
    Pid::from_raw(i32::try_from(ready["pid"].as_i64()?).ok()?)
}

async fn restart(house: &mut NearpathServer, start: Instant, length: Duration) -> io::Result<Cost> {
    sleep_until(start + length / 3).await;
    let from = start.elapsed();
    house.restart().await?;
    Ok(Cost::During(vec![(from, start.elapsed())]))
}

/// How many failed that should not have; says which.
fn verdict(act: &str, done: &[Done], cost: &Cost) -> Ratio {
    let mut outside = Tally::default();
    for one in done
        .iter()
        .filter(|one| one.outcome.is_err() && !cost.allows(one))
    {
        outside.add(one.latency());
        eprintln!(
            "{act}: request due at {:?} failed at {:?}: {:?}",
            one.intended, one.ended, one.outcome
        );
    }
    if let Cost::During(spans) = cost {
        spans
            .iter()
            .for_each(|(from, to)| eprintln!("{act}: gap from {from:?} to {to:?}"));
    }
    let name = format!("{act}: failures that it may not cost");
    Ratio {
        name,
        value: outside.failed() as f64,
        better: Better::Lower,
        goal: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(from: u64, to: u64, failure: Failure) -> Done {
        Done {
            intended: Duration::from_secs(from),
            ended: Duration::from_secs(to),
            outcome: Err(failure),
        }
    }

    #[test]
    fn what_an_act_may_cost() {
        let died = failed(1, 2, Failure::Status(502, "instance_died".into()));
        assert!(Cost::Inside.allows(&died));
        assert!(!Cost::Inside.allows(&failed(1, 2, Failure::Status(503, "queue_timeout".into()))));
        let gap = Cost::During(vec![(Duration::from_secs(5), Duration::from_secs(7))]);
        assert!(
            gap.allows(&failed(4, 6, Failure::Broken)),
            "sent before, cut in the gap"
        );
        assert!(
            gap.allows(&failed(6, 9, Failure::Connect)),
            "sent in the gap"
        );
        assert!(
            !gap.allows(&failed(1, 4, Failure::Broken))
                && !gap.allows(&failed(8, 9, Failure::Connect))
        );
        assert!(!Cost::During(Vec::new()).allows(&died));
    }
}
