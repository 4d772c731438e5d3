//! `motion`: a sensor and an actuator with little work, warm in a chain, and scaled to zero when
//! idle.
//!
//! The trace is that of `sensing::motion`, compressed: gaps, times within a run and the idle
//! timeout are divided by the same number. Each run thus begins with a cold start exactly as at
//! full length. Measured times are not divided. Requests do not overlap additionally, as long as a
//! response takes less than the shortest gap.

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

use super::{BenchOutcome, parse_seconds};
use crate::compare::{
    BenchComparison, BetterDirection, GoalRatio, RatioGoal, RoundSample, median_of,
};
use crate::cpu::{self, CpuSnapshot};
use crate::load::connection::LoadConnection;
use crate::load::mqtt::MqttPublisher;
use crate::load::{RequestTemplate, trace};
use crate::peers::nearpath::NearpathServer;
use crate::peers::{PeerProcess, free_addr, sensors};
use crate::tally::{RequestFailure, RequestTally};

const VARIANTS: [&str; 4] = ["ring, mqtt", "ring, http", "direct http", "scale to zero"];
/// p99 of the published system's scale to zero, in seconds (SPRIGHT, motion detection on Knative).
/// Quoted, not measured.
const PUBLISHED_S: f64 = 9.0;
/// Goal relative to it: two orders of magnitude.
const GOAL_RATIO: f64 = 100.0;

/// Options of `motion`.
#[derive(clap::Args)]
pub(crate) struct MotionArgs {
    /// Set the rounds of each variant; every round uses the next seed
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Set the seed of the first trace
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Set the length of the trace before compression, in seconds
    #[arg(long, default_value = "1200", value_parser = parse_seconds)]
    length: Duration,

    /// Set the compression of the trace; 1 keeps all gaps
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=120))]
    compress: u32,

    /// Set the idle time before both functions are scaled to zero, before compression, in seconds
    #[arg(long, default_value = "20", value_parser = parse_seconds)]
    idle: Duration,
}

/// Milliseconds of each phase of each start, by function and phase.
type PhaseTimes = BTreeMap<(&'static str, String), Vec<f64>>;

/// Measured setup.
struct MotionSetup {
    warm: NearpathServer,
    cold: NearpathServer,
    direct: Vec<PeerProcess>,
    mqtt: SocketAddr,
    _folders: [TempDir; 2],
}

impl MotionSetup {
    async fn build() -> io::Result<Self> {
        // Two nodes: scaling one variant to zero must not touch the other's instances.
        let (folders, mqtt) = ([tempfile::tempdir()?, tempfile::tempdir()?], free_addr()?);
        let options = vec!["--mqtt-listen".to_owned(), mqtt.to_string()];
        let warm = NearpathServer::start_with(folders[0].path(), options).await?;
        let cold = NearpathServer::start(folders[1].path()).await?;
        for (server, folder) in [(&warm, &folders[0]), (&cold, &folders[1])] {
            sensors::deploy_chain(server, folder.path(), "motion", &sensors::MOTION_CHAIN).await?;
        }
        let direct = sensors::start_direct(&sensors::MOTION_CHAIN).await?;
        Ok(Self {
            warm,
            cold,
            direct,
            mqtt,
            _folders: folders,
        })
    }

    /// Returns the address for HTTP calls, and the processes whose CPU time counts.
    fn entry_address(&self, variant: &str) -> (SocketAddr, Vec<u32>) {
        match variant {
            "direct http" => (
                self.direct[1].addr,
                self.direct.iter().map(PeerProcess::pid).collect(),
            ),
            "scale to zero" => (self.cold.addr(), vec![self.cold.pid()]),
            _ => (self.warm.addr(), vec![self.warm.pid()]),
        }
    }
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: MotionArgs) -> BenchOutcome {
    let setup = MotionSetup::build().await?;
    let mut comparison = BenchComparison::new("motion", args.rounds);
    let (phases, mut seeds) = (RefCell::new(PhaseTimes::new()), [args.seed; VARIANTS.len()]);
    let mut held_up = [const { Vec::new() }; VARIANTS.len()];
    let case = format!(
        "{} s of sensor events, {} times faster",
        args.length.as_secs(),
        args.compress
    );
    let one = async |variant: usize| {
        // Every variant plays the same traces in the same order.
        seeds[variant] += 1;
        let pids = setup.entry_address(VARIANTS[variant]).1;
        // A long latency with a busy machine is the machine's, and not the variant's.
        let before = cpu::run_queue_delay(&pids);
        let sample = play_trace(
            &setup,
            VARIANTS[variant],
            seeds[variant] - 1,
            &args,
            &phases,
        )
        .await?;
        let waited = cpu::run_queue_delay(&pids).saturating_sub(before);
        held_up[variant]
            .push(waited.as_secs_f64() * 1e3 / (args.length / args.compress).as_secs_f64());
        Ok::<_, io::Error>(sample)
    };
    comparison.measure_case(&case, &VARIANTS, one).await?;
    print_phases(&phases.into_inner());
    println!("run-queue delay of threads, ms per second:");
    for (variant, ms) in VARIANTS.iter().zip(held_up) {
        println!("{variant:14} {:.2}", median_of(ms.into_iter()));
    }
    println!();
    add_figures(&mut comparison, &case);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Plays a trace through a variant.
async fn play_trace(
    setup: &MotionSetup,
    variant: &str,
    seed: u64,
    args: &MotionArgs,
    phases: &RefCell<PhaseTimes>,
) -> io::Result<RoundSample> {
    let length = args.length / args.compress;
    let events = events(seed, Shape::default().compressed(args.compress), length);
    let moments: Vec<_> = events
        .iter()
        .map(|event| Duration::from_millis(event.at_ms))
        .collect();
    let (addr, pids) = setup.entry_address(variant);
    let before = CpuSnapshot::read_now(&pids);
    let tally = match variant {
        "ring, mqtt" => publish_mqtt(setup.mqtt, &events, &moments).await?,
        "scale to zero" => {
            let idle = args.idle / args.compress;
            // A trace begins with a gap, so the functions are asleep at its first event.
            scale_to_zero(&setup.cold, phases).await;
            // A real idle time-out would need the uncompressed trace; scaling by hand does the same
            // at compressed times.
            let rest = async |until_next: Duration| {
                if until_next > idle {
                    tokio::time::sleep(idle).await;
                    scale_to_zero(&setup.cold, phases).await;
                }
            };
            post_http(addr, &events, &moments, rest).await?
        }
        _ => post_http(addr, &events, &moments, async |_| {}).await?,
    };
    tally
        .failures_by_kind()
        .iter()
        .for_each(|(what, times)| eprintln!("{times} × {what}"));
    Ok(RoundSample::from_tally(
        &tally,
        length,
        before.spent_until(&CpuSnapshot::read_now(&pids)),
    ))
}

async fn publish_mqtt(
    addr: SocketAddr,
    events: &[Event],
    moments: &[Duration],
) -> io::Result<RequestTally> {
    let topic = TopicName::try_from(sensors::SENSOR_TOPIC).map_err(io::Error::other)?;
    let mut publisher = MqttPublisher::open(addr)
        .await
        .map_err(|failure| io::Error::other(failure.to_string()))?;
    let send = async |number: usize| publisher.publish(&topic, event_body(&events[number])).await;
    Ok(trace::run_trace(moments, send, async |_| {}).await)
}

/// Sends events over one connection and checks each response.
async fn post_http(
    addr: SocketAddr,
    events: &[Event],
    moments: &[Duration],
    rest: impl AsyncFnMut(Duration),
) -> io::Result<RequestTally> {
    let template = RequestTemplate::for_get(addr, "/function/sensor").map_err(io::Error::other)?;
    let template = RequestTemplate {
        method: Method::POST,
        ..template
    };
    // One kept connection: a sensor's gateway keeps one, too.
    let mut connection = LoadConnection::open(addr)
        .await
        .map_err(|failure| io::Error::other(failure.to_string()))?;
    let send = async |number: usize| {
        let event = events[number];
        let request = RequestTemplate {
            body: event_body(&event),
            ..template.clone()
        }
        .build_request();
        let answer = connection.send_request(request).await?.require_success()?;
        let decision: Decision =
            serde_json::from_slice(&answer.body).map_err(|_| RequestFailure::Body)?;
        if decision == event.sight().decide() {
            Ok(())
        } else {
            Err(RequestFailure::Body)
        }
    };
    Ok(trace::run_trace(moments, send, rest).await)
}

fn event_body(event: &Event) -> Bytes {
    serde_json::to_vec(event)
        .expect("plain fields become JSON")
        .into()
}

/// Scales both functions to zero, after recording the start phases of their instances.
async fn scale_to_zero(server: &NearpathServer, phases: &RefCell<PhaseTimes>) {
    // Phases are read before scaling: afterwards the instances are gone.
    for (name, _) in sensors::MOTION_CHAIN {
        let Ok((_, described)) = server.describe_function(name).await else {
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
        // Not fatal: the run goes on and its cold starts are fewer.
        if let Err(error) = server.scale_function(name, 0).await {
            eprintln!("{name} was not scaled to zero: {error}");
        }
    }
}

/// Prints the phases of cold starts: medians.
fn print_phases(phases: &PhaseTimes) {
    println!(
        "{:10} {:18} {:>7} {:>9}",
        "function", "phase", "starts", "p50 ms"
    );
    for ((function, phase), ms) in phases {
        println!(
            "{function:10} {phase:18} {:>7} {:>9.2}",
            ms.len(),
            median_of(ms.iter().copied())
        );
    }
    println!();
}

fn add_figures(comparison: &mut BenchComparison, case: &str) {
    for warm in &VARIANTS[..2] {
        let Some(warm_us) = comparison.row_value(case, warm, |row| row.p99_us) else {
            continue;
        };
        let name = format!("p99, published scale to zero (9 s, quoted) / {warm}");
        let value = PUBLISHED_S * 1e6 / warm_us;
        comparison.add_figure(GoalRatio {
            name,
            value,
            better: BetterDirection::Higher,
            goal: GOAL_RATIO,
        });
    }
    let cold = RatioGoal {
        value: |row| row.p99_us,
        better: BetterDirection::Higher,
        goal: GOAL_RATIO,
    };
    comparison.add_ratio(
        "p99, nearpath's own scale to zero / ring, http",
        case,
        "scale to zero",
        "ring, http",
        cold,
    );
}
