//! `motion`: a sensor and an actuator that have little to do, warm in a chain, and scaled to zero whenever they rest.
//!
//! The trace is that of `sensing::motion`, compressed: gaps, times within a run and the idle time-out are all divided by the
//! same number, so each run begins with a cold start exactly where it would at full length. What is not divided is what
//! is measured. Nothing overlaps that would not otherwise, as long as an answer takes less than the shortest gap.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use mqtt_proto::TopicName;
use sensing::motion::{Decision, Event, Shape, events};
use tempfile::TempDir;

use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, Ratio, Sample, median};
use crate::cpu::{self, Moment};
use crate::load::connection::Connection;
use crate::load::mqtt::Publisher;
use crate::load::{Template, trace};
use crate::peers::nearpath::NearpathServer;
use crate::peers::{Peer, free_addr, sensors};
use crate::tally::{Failure, Tally};

const VARIANTS: [&str; 4] = ["ring, mqtt", "ring, http", "direct http", "scale to zero"];
/// p99 of the published system's scale to zero, in seconds (SPRIGHT, motion detection on Knative). Quoted, not measured.
const PUBLISHED_S: f64 = 9.0;
/// Promised against it: two orders of magnitude.
const GOAL: f64 = 100.0;

/// Options of `motion`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured, each time with the next seed
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Seed of the first trace
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// How long the trace is before it is compressed, in seconds
    #[arg(long, default_value = "1200", value_parser = seconds)]
    length: Duration,

    /// How many times faster than life; 1: the gaps as they are
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=120))]
    compress: u32,

    /// How long after an answer both functions are scaled to zero, before compression, in seconds
    #[arg(long, default_value = "20", value_parser = seconds)]
    idle: Duration,
}

/// Milliseconds of each phase of each start, by function and phase.
type Phases = BTreeMap<(&'static str, String), Vec<f64>>;

/// What is measured.
struct Stage {
    warm: NearpathServer,
    cold: NearpathServer,
    direct: Vec<Peer>,
    mqtt: SocketAddr,
    _folders: [TempDir; 2],
}

impl Stage {
    async fn build() -> io::Result<Self> {
        let (folders, mqtt) = ([tempfile::tempdir()?, tempfile::tempdir()?], free_addr()?);
        let options = vec!["--mqtt-listen".to_owned(), mqtt.to_string()];
        let warm = NearpathServer::start_with(folders[0].path(), options).await?;
        let cold = NearpathServer::start(folders[1].path()).await?;
        for (house, folder) in [(&warm, &folders[0]), (&cold, &folders[1])] {
            sensors::deploy(house, folder.path(), "motion", &sensors::MOTION).await?;
        }
        let direct = sensors::direct(&sensors::MOTION).await?;
        Ok(Self {
            warm,
            cold,
            direct,
            mqtt,
            _folders: folders,
        })
    }

    /// Whom to ask over HTTP, and whose CPU time counts.
    fn entry(&self, variant: &str) -> (SocketAddr, Vec<u32>) {
        match variant {
            "direct http" => (
                self.direct[1].addr,
                self.direct.iter().map(Peer::pid).collect(),
            ),
            "scale to zero" => (self.cold.addr(), vec![self.cold.pid()]),
            _ => (self.warm.addr(), vec![self.warm.pid()]),
        }
    }
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let stage = Stage::build().await?;
    let mut comparison = Comparison::new("motion", args.rounds);
    let (phases, mut seeds) = (RefCell::new(Phases::new()), [args.seed; VARIANTS.len()]);
    let mut held_up = [const { Vec::new() }; VARIANTS.len()];
    let case = format!(
        "{} s of sensors, {} times faster",
        args.length.as_secs(),
        args.compress
    );
    let one = async |variant: usize| {
        seeds[variant] += 1;
        let pids = stage.entry(VARIANTS[variant]).1;
        let before = cpu::held_up(&pids);
        let sample = play(
            &stage,
            VARIANTS[variant],
            seeds[variant] - 1,
            &args,
            &phases,
        )
        .await?;
        let waited = cpu::held_up(&pids).saturating_sub(before);
        held_up[variant]
            .push(waited.as_secs_f64() * 1e3 / (args.length / args.compress).as_secs_f64());
        Ok::<_, io::Error>(sample)
    };
    comparison.case(&case, &VARIANTS, one).await?;
    print(&phases.into_inner());
    println!("threads ready to run while the processors were busy with others, ms a second:");
    for (variant, ms) in VARIANTS.iter().zip(held_up) {
        println!("{variant:14} {:.2}", median(ms.into_iter()));
    }
    println!();
    figures(&mut comparison, &case);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One trace through one variant.
async fn play(
    stage: &Stage,
    variant: &str,
    seed: u64,
    args: &Args,
    phases: &RefCell<Phases>,
) -> io::Result<Sample> {
    let length = args.length / args.compress;
    let events = events(seed, Shape::default().compressed(args.compress), length);
    let moments: Vec<_> = events
        .iter()
        .map(|event| Duration::from_millis(event.at_ms))
        .collect();
    let (addr, pids) = stage.entry(variant);
    let before = Moment::now(&pids);
    let tally = match variant {
        "ring, mqtt" => over_mqtt(stage.mqtt, &events, &moments).await?,
        "scale to zero" => {
            let idle = args.idle / args.compress;
            fall_asleep(&stage.cold, phases).await;
            let rest = async |until_next: Duration| {
                if until_next > idle {
                    tokio::time::sleep(idle).await;
                    fall_asleep(&stage.cold, phases).await;
                }
            };
            over_http(addr, &events, &moments, rest).await?
        }
        _ => over_http(addr, &events, &moments, async |_| {}).await?,
    };
    tally
        .failures()
        .iter()
        .for_each(|(what, times)| eprintln!("{times} × {what}"));
    Ok(Sample::of(
        &tally,
        length,
        before.until(&Moment::now(&pids)),
    ))
}

async fn over_mqtt(addr: SocketAddr, events: &[Event], moments: &[Duration]) -> io::Result<Tally> {
    let topic = TopicName::try_from(sensors::TOPIC).map_err(io::Error::other)?;
    let mut publisher = Publisher::open(addr)
        .await
        .map_err(|failure| io::Error::other(failure.to_string()))?;
    let ask = async |number: usize| publisher.publish(&topic, body(&events[number])).await;
    Ok(trace::run(moments, ask, async |_| {}).await)
}

/// Over one connection, and each answer is looked at.
async fn over_http(
    addr: SocketAddr,
    events: &[Event],
    moments: &[Duration],
    rest: impl AsyncFnMut(Duration),
) -> io::Result<Tally> {
    let template = Template::get(addr, "/function/sensor").map_err(io::Error::other)?;
    let template = Template {
        method: Method::POST,
        ..template
    };
    let mut connection = Connection::open(addr)
        .await
        .map_err(|failure| io::Error::other(failure.to_string()))?;
    let ask = async |number: usize| {
        let event = events[number];
        let request = Template {
            body: body(&event),
            ..template.clone()
        }
        .request();
        let answer = connection.ask(request).await?.success()?;
        let decision: Decision = serde_json::from_slice(&answer.body).map_err(|_| Failure::Body)?;
        if decision == event.sight().decide() {
            Ok(())
        } else {
            Err(Failure::Body)
        }
    };
    Ok(trace::run(moments, ask, rest).await)
}

fn body(event: &Event) -> Bytes {
    serde_json::to_vec(event)
        .expect("plain fields become JSON")
        .into()
}

/// Scales both functions to zero, after noting how the instances that go had started.
async fn fall_asleep(house: &NearpathServer, phases: &RefCell<Phases>) {
    for (name, _) in sensors::MOTION {
        let Ok((_, described)) = house.describe(name).await else {
            continue;
        };
        let instances = described["instances"].as_array().into_iter().flatten();
        for (phase, ms) in instances
            .filter_map(|instance| instance["startMs"].as_object())
            .flatten()
        {
            phases
                .borrow_mut()
                .entry((name, phase.clone()))
                .or_default()
                .extend(ms.as_f64());
        }
        if let Err(error) = house.scale(name, 0).await {
            eprintln!("{name} stays up: {error}");
        }
    }
}

/// Where the time of a cold start goes: medians.
fn print(phases: &Phases) {
    println!(
        "{:10} {:18} {:>7} {:>9}",
        "function", "phase", "starts", "p50 ms"
    );
    for ((function, phase), ms) in phases {
        println!(
            "{function:10} {phase:18} {:>7} {:>9.2}",
            ms.len(),
            median(ms.iter().copied())
        );
    }
    println!();
}

fn figures(comparison: &mut Comparison, case: &str) {
    for warm in &VARIANTS[..2] {
        let Some(warm_us) = comparison.value(case, warm, |row| row.p99_us) else {
            continue;
        };
        let name = format!("p99, published scale to zero (9 s, quoted) / {warm}");
        let value = PUBLISHED_S * 1e6 / warm_us;
        comparison.figure(Ratio {
            name,
            value,
            better: Better::Higher,
            goal: GOAL,
        });
    }
    let cold = Goal {
        value: |row| row.p99_us,
        better: Better::Higher,
        goal: GOAL,
    };
    comparison.ratio(
        "p99, nearpath's own scale to zero / ring, http",
        case,
        "scale to zero",
        "ring, http",
        cold,
    );
}
