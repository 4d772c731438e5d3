//! `parking`: every four minutes 164 pictures at once, and nothing between. The period is compressed, the functions' own
//! times are not.
//!
//! One round is one period: the burst, then the rest. `p50` and `p99` are of pictures, `rps` is pictures by the second until
//! the last answer, `cpu` is that of the whole period, by picture. Scaled to zero, the functions rest from an idle time-out
//! after the burst until they are started again some time before the next, as those who know their schedule do.

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

use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, Ratio, Sample, median};
use crate::cpu::Moment;
use crate::load::Template;
use crate::load::connection::Connection;
use crate::peers::nearpath::NearpathServer;
use crate::peers::{Peer, sensors};
use crate::tally::{Failure, Tally};

const VARIANTS: [&str; 3] = ["ring", "direct http", "scale to zero, pre-warmed"];

/// Options of `parking`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Periods that each variant is measured in
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Seed of the plates and pictures
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// How many times shorter the period is than 240 s; 1: as it is
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=60))]
    compress: u32,

    /// How long after a burst the functions are scaled to zero, and how long before the next they are started; before
    /// compression, in seconds
    #[arg(long, default_value = "20", value_parser = seconds)]
    idle: Duration,
}

/// What is measured.
struct Stage {
    warm: NearpathServer,
    cold: NearpathServer,
    direct: Vec<Peer>,
    _folders: [TempDir; 2],
}

impl Stage {
    async fn build() -> io::Result<Self> {
        let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
        let (warm, cold) = (
            NearpathServer::start(folders[0].path()).await?,
            NearpathServer::start(folders[1].path()).await?,
        );
        for (house, folder) in [(&warm, &folders[0]), (&cold, &folders[1])] {
            sensors::deploy(house, folder.path(), "parking", &sensors::PARKING).await?;
        }
        Ok(Self {
            warm,
            cold,
            direct: sensors::direct(&sensors::PARKING).await?,
            _folders: folders,
        })
    }

    fn entry(&self, variant: usize) -> (SocketAddr, Vec<u32>) {
        match (variant, self.direct.last()) {
            (1, Some(entry)) => (entry.addr, self.direct.iter().map(Peer::pid).collect()),
            (2, _) => (self.cold.addr(), vec![self.cold.pid()]),
            _ => (self.warm.addr(), vec![self.warm.pid()]),
        }
    }

    async fn scale(&self, replicas: u64) -> io::Result<()> {
        for (name, _) in sensors::PARKING {
            self.cold.scale(name, replicas).await?;
        }
        for (name, _) in sensors::PARKING {
            self.cold.until_available(name, replicas).await?;
        }
        Ok(())
    }
}

/// One period of one variant.
struct Period {
    variant: usize,
    /// Until the last answer.
    burst: Duration,
    /// CPU time from then on, as a share of that time.
    rest: f64,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let stage = Stage::build().await?;
    let mut comparison = Comparison::new("parking", args.rounds);
    let (periods, mut bursts) = (RefCell::new(Vec::new()), [0; VARIANTS.len()]);
    let case = format!(
        "{SPOTS} pictures every {} s",
        (PERIOD / args.compress).as_secs_f64()
    );
    let one = async |variant: usize| {
        bursts[variant] += 1;
        let (sample, period) = period(&stage, variant, bursts[variant], &args).await?;
        periods.borrow_mut().push(period);
        Ok::<_, io::Error>(sample)
    };
    comparison.case(&case, &VARIANTS, one).await?;
    figures(&mut comparison, &case, &periods.into_inner());
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn period(
    stage: &Stage,
    variant: usize,
    number: u64,
    args: &Args,
) -> io::Result<(Sample, Period)> {
    let (addr, pids) = stage.entry(variant);
    let (start, before) = (Instant::now(), Moment::now(&pids));
    let tally = burst(addr, args.seed, number).await?;
    let (burst, after_burst) = (start.elapsed(), Moment::now(&pids));
    let end = start + PERIOD / args.compress;
    if variant == 2 {
        sleep_until(start + burst + args.idle / args.compress).await;
        stage.scale(0).await?;
        sleep_until(end - args.idle / args.compress).await;
        stage.scale(1).await?;
    }
    sleep_until(end).await;
    let spent = Moment::now(&pids);
    let rest = after_burst.until(&spent).as_secs_f64() / (start.elapsed() - burst).as_secs_f64();
    tally
        .failures()
        .iter()
        .for_each(|(what, times)| eprintln!("{}: {times} × {what}", VARIANTS[variant]));
    let sample = Sample::of(&tally, burst, before.until(&spent));
    Ok((
        sample,
        Period {
            variant,
            burst,
            rest,
        },
    ))
}

/// All cameras at once, each on a connection of its own, opened before: 164 at once overflow a listener's queue of 128, and
/// those that have to knock again after a second would be what is measured.
async fn burst(addr: SocketAddr, seed: u64, number: u64) -> io::Result<Tally> {
    let template = Template::get(addr, "/function/detection").map_err(io::Error::other)?;
    let mut shots = Vec::new();
    for plate in plates(seed, number) {
        let opened = Connection::open(addr)
            .await
            .map_err(|failure| io::Error::other(failure.to_string()))?;
        shots.push((opened, plate, Bytes::from(picture(seed, plate))));
    }
    let one = async |mut connection: Connection, plate: u32, body: Bytes| {
        let since = Instant::now();
        let request = Template {
            method: Method::POST,
            body,
            ..template.clone()
        }
        .request();
        let answer = connection.ask(request).await?.success()?;
        let visit: Visit = serde_json::from_slice(&answer.body).map_err(|_| Failure::Body)?;
        if visit.plate == plate && visit.route == visit.whole_route() {
            Ok(since.elapsed())
        } else {
            Err(Failure::Body)
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

fn figures(comparison: &mut Comparison, case: &str, periods: &[Period]) {
    println!(
        "{:26} {:>14} {:>24}",
        "variant", "burst, p50 ms", "at rest, % of a core"
    );
    for (variant, name) in VARIANTS.iter().enumerate() {
        let of = |value: fn(&Period) -> f64| {
            median(
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
            let name = "% of a core between bursts, ring".to_owned();
            comparison.figure(Ratio {
                name,
                value: rest,
                better: Better::Lower,
                goal: 0.5,
            });
        }
    }
    println!();
    let goal = |value, goal| Goal {
        value,
        better: Better::Lower,
        goal,
    };
    comparison.ratio(
        "p99, ring / direct http",
        case,
        VARIANTS[0],
        VARIANTS[1],
        goal(|row| row.p99_us, 1.05),
    );
    let cpu = goal(|row| row.cpu_us_per_request, 1.0);
    comparison.ratio(
        "CPU of a period, ring / scale to zero",
        case,
        VARIANTS[0],
        VARIANTS[2],
        cpu,
    );
}
