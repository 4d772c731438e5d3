//! `parking`: 164 pictures at once every four minutes, and no requests between. The period is
//! compressed, the functions' own times are not.
//!
//! A round is a period: the burst, then the idle time. `p50` and `p99` are of pictures, `rps` is
//! pictures per second until the last response. `cpu` is the CPU time of the whole period per
//! picture. The variant with scale to zero stops after an idle timeout. The next start precedes the
//! next burst, like by an operator with the schedule.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Method;
use sensing::parking::{PERIOD, SPOTS, Visit, picture, plates};
use tempfile::TempDir;
use tokio::time::{Instant, sleep_until};

use super::{BenchOutcome, parse_seconds};
use crate::compare::{
    BenchComparison, BetterDirection, GoalRatio, RatioGoal, RoundSample, median_of,
};
use crate::cpu::CpuSnapshot;
use crate::load::RequestTemplate;
use crate::load::connection::LoadConnection;
use crate::peers::nearpath::NearpathServer;
use crate::peers::{PeerProcess, sensors};
use crate::tally::{RequestFailure, RequestTally};

const VARIANTS: [&str; 3] = ["ring", "direct http", "scale to zero, pre-warmed"];

/// Options of `parking`.
#[derive(clap::Args)]
pub(crate) struct ParkingArgs {
    /// Set the number of periods per variant
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Set the seed of the plates and pictures
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Set the compression of the period of 240 s; 1 keeps it
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=60))]
    compress: u32,

    /// Set the idle time after a burst before scaling to zero, and the lead time before the next;
    /// before compression, in seconds
    #[arg(long, default_value = "20", value_parser = parse_seconds)]
    idle: Duration,
}

/// Measured setup.
struct ParkingSetup {
    warm: NearpathServer,
    cold: NearpathServer,
    direct: Vec<PeerProcess>,
    _folders: [TempDir; 2],
}

impl ParkingSetup {
    async fn build() -> io::Result<Self> {
        let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
        let (warm, cold) = (
            NearpathServer::start(folders[0].path()).await?,
            NearpathServer::start(folders[1].path()).await?,
        );
        for (server, folder) in [(&warm, &folders[0]), (&cold, &folders[1])] {
            sensors::deploy_chain(server, folder.path(), "parking", &sensors::PARKING_CHAIN)
                .await?;
        }
        Ok(Self {
            warm,
            cold,
            direct: sensors::start_direct(&sensors::PARKING_CHAIN).await?,
            _folders: folders,
        })
    }

    fn entry_address(&self, variant: usize) -> (SocketAddr, Vec<u32>) {
        match (variant, self.direct.last()) {
            (1, Some(entry)) => (
                entry.addr,
                self.direct.iter().map(PeerProcess::pid).collect(),
            ),
            (2, _) => (self.cold.addr(), vec![self.cold.pid()]),
            _ => (self.warm.addr(), vec![self.warm.pid()]),
        }
    }

    async fn scale_functions(&self, replicas: u64) -> io::Result<()> {
        // All requests are sent before any is awaited, so that they start concurrently.
        for (name, _) in sensors::PARKING_CHAIN {
            self.cold.scale_function(name, replicas).await?;
        }
        for (name, _) in sensors::PARKING_CHAIN {
            self.cold.wait_available(name, replicas).await?;
        }
        Ok(())
    }
}

/// Measured period of a variant.
struct PeriodStats {
    variant: usize,
    /// Time until the last response.
    burst: Duration,
    /// CPU time after the last response, as a share of that time.
    rest: f64,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: ParkingArgs) -> BenchOutcome {
    let setup = ParkingSetup::build().await?;
    let mut comparison = BenchComparison::new("parking", args.rounds);
    let (periods, mut bursts) = (RefCell::new(Vec::new()), [0; VARIANTS.len()]);
    let case = format!(
        "{SPOTS} pictures every {} s",
        (PERIOD / args.compress).as_secs_f64()
    );
    let one = async |variant: usize| {
        bursts[variant] += 1;
        let (sample, period) = run_period(&setup, variant, bursts[variant], &args).await?;
        periods.borrow_mut().push(period);
        Ok::<_, io::Error>(sample)
    };
    comparison.measure_case(&case, &VARIANTS, one).await?;
    add_figures(&mut comparison, &case, &periods.into_inner());
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn run_period(
    setup: &ParkingSetup,
    variant: usize,
    number: u64,
    args: &ParkingArgs,
) -> io::Result<(RoundSample, PeriodStats)> {
    let (addr, pids) = setup.entry_address(variant);
    let (start, before) = (Instant::now(), CpuSnapshot::read_now(&pids));
    let tally = send_burst(addr, args.seed, number).await?;
    let (burst, after_burst) = (start.elapsed(), CpuSnapshot::read_now(&pids));
    // From the burst's beginning: a slow burst shortens the rest, not the next period.
    let end = start + PERIOD / args.compress;
    if variant == 2 {
        sleep_until(start + burst + args.idle / args.compress).await;
        setup.scale_functions(0).await?;
        // The pre-warming that a known schedule allows; without it each burst would be a cold
        // start.
        sleep_until(end - args.idle / args.compress).await;
        setup.scale_functions(1).await?;
    }
    sleep_until(end).await;
    let spent = CpuSnapshot::read_now(&pids);
    // CPU time between the bursts alone, as a share of one core.
    let rest =
        after_burst.spent_until(&spent).as_secs_f64() / (start.elapsed() - burst).as_secs_f64();
    tally
        .failures_by_kind()
        .iter()
        .for_each(|(what, times)| eprintln!("{}: {times} × {what}", VARIANTS[variant]));
    let sample = RoundSample::from_tally(&tally, burst, before.spent_until(&spent));
    Ok((
        sample,
        PeriodStats {
            variant,
            burst,
            rest,
        },
    ))
}

/// Sends from all cameras at once, each on a connection opened before. 164 new connections would
/// overflow a listener's queue of 128, and their retries after a second would dominate the result.
async fn send_burst(addr: SocketAddr, seed: u64, number: u64) -> io::Result<RequestTally> {
    let template =
        RequestTemplate::for_get(addr, "/function/detection").map_err(io::Error::other)?;
    // Connections and pictures are prepared: the burst is to be as sharp as cameras on one clock.
    let mut shots = Vec::new();
    for plate in plates(seed, number) {
        let opened = LoadConnection::open(addr)
            .await
            .map_err(|failure| io::Error::other(failure.to_string()))?;
        shots.push((opened, plate, Bytes::from(picture(seed, plate))));
    }
    let one = async |mut connection: LoadConnection, plate: u32, body: Bytes| {
        let since = Instant::now();
        let request = RequestTemplate {
            method: Method::POST,
            body,
            ..template.clone()
        }
        .build_request();
        let answer = connection.send_request(request).await?.require_success()?;
        let visit: Visit =
            serde_json::from_slice(&answer.body).map_err(|_| RequestFailure::Body)?;
        // A wrong plate or a station left out would be a fast wrong answer.
        if visit.plate == plate && visit.route == visit.whole_route() {
            Ok(since.elapsed())
        } else {
            Err(RequestFailure::Body)
        }
    };
    let outcomes = join_all(
        shots
            .into_iter()
            .map(|(opened, plate, body)| one(opened, plate, body)),
    )
    .await;
    Ok(outcomes.into_iter().collect())
}

fn add_figures(comparison: &mut BenchComparison, case: &str, periods: &[PeriodStats]) {
    println!(
        "{:26} {:>14} {:>24}",
        "variant", "burst, p50 ms", "idle, % of a core"
    );
    for (variant, name) in VARIANTS.iter().enumerate() {
        let of = |value: fn(&PeriodStats) -> f64| {
            median_of(
                periods
                    .iter()
                    .filter(|one| one.variant == variant)
                    .map(value),
            )
        };
        let (burst, rest) = (
            of(|one| one.burst.as_secs_f64() * 1e3),
            of(|one| one.rest * 100.0),
        );
        println!("{name:26} {burst:>14.1} {rest:>24.3}");
        if variant == 0 {
            let name = "CPU between bursts, % of a core, ring".to_owned();
            comparison.add_figure(GoalRatio {
                name,
                value: rest,
                better: BetterDirection::Lower,
                goal: 0.5,
            });
        }
    }
    println!();
    let goal = |value, goal| RatioGoal {
        value,
        better: BetterDirection::Lower,
        goal,
    };
    comparison.add_ratio(
        "p99, ring / direct http",
        case,
        VARIANTS[0],
        VARIANTS[1],
        goal(|row| row.p99_us, 1.05),
    );
    let cpu = goal(|row| row.cpu_us_per_request, 1.0);
    comparison.add_ratio(
        "CPU per period, ring / scale to zero",
        case,
        VARIANTS[0],
        VARIANTS[2],
        cpu,
    );
}
