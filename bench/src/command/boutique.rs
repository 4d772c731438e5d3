//! `boutique`: the shop of ten services, by the ways to connect them, with as many customers as it can take. Each way runs
//! the same services; CPU time is that of every process of the way.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::measure::{Measure, measured};
use super::{Outcome, seconds};
use crate::boutique::rush;
use crate::compare::{Better, Comparison, Goal, Measured, Row};
use crate::peers::boutique::{Chain, Shop};

/// The ways: a name, and how it is built.
const WAYS: [(&str, Way); 7] = [
    (
        "ring",
        Way::Nearpath(Chain {
            delivery: None,
            arguments: "",
        }),
    ),
    (
        "ring, protobuf",
        Way::Nearpath(Chain {
            delivery: None,
            arguments: "--encoding protobuf",
        }),
    ),
    (
        "sockmap",
        Way::Nearpath(Chain {
            delivery: Some("sockmap"),
            arguments: "",
        }),
    ),
    ("sidecars", Way::Sidecars),
    ("grpc", Way::Bare("grpc")),
    ("direct http", Way::Bare("http")),
    (
        POLL,
        Way::Nearpath(Chain {
            delivery: Some("poll"),
            arguments: "",
        }),
    ),
];
/// The way whose services never sleep: ten of them and the gateway's threads take turns on the processors. So it is there only
/// while it is measured, and with few customers.
const POLL: &str = "poll";
const HIGHEST: &str = "highest stable load";

/// How a shop is built.
enum Way {
    Nearpath(Chain),
    Sidecars,
    Bare(&'static str),
}

/// Options of `boutique`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    measure: Measure,

    /// Customers at a time, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
    customers: Vec<usize>,

    /// Most customers that `poll` is measured with: its services take every processor from each other
    #[arg(long, default_value_t = 8, value_name = "N")]
    poll_customers: usize,

    /// A load is stable when no request fails and 99 of 100 are answered within this, in seconds
    #[arg(long, default_value = "0.1", value_parser = seconds)]
    bound: Duration,

    /// Only the ways whose names are given
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// A way that was chosen. It stands for the whole run, if it can.
struct Chosen {
    name: &'static str,
    way: &'static Way,
    shop: Option<Shop>,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let mut chosen = Vec::new();
    for (name, way) in WAYS
        .iter()
        .filter(|(name, _)| args.only.is_empty() || args.only.iter().any(|only| only == name))
    {
        let shop = if *name == POLL {
            None
        } else {
            Some(build(way).await?)
        };
        chosen.push(Chosen { name, way, shop });
    }
    let mut comparison = Comparison::new("boutique", args.measure.rounds);
    for &customers in &args.customers {
        let case = format!("customers {customers}");
        let ways: Vec<_> = chosen
            .iter()
            .filter(|one| one.name != POLL || customers <= args.poll_customers)
            .collect();
        let names: Vec<_> = ways.iter().map(|one| one.name).collect();
        comparison
            .loads(&case, &names, async |way: usize| {
                sample(ways[way], customers, &args).await
            })
            .await?;
        eprintln!("measured: {case}");
    }
    let names: Vec<_> = chosen.iter().map(|one| one.name).collect();
    comparison.best(HIGHEST, &names, |row| {
        row.failed == 0 && row.p99_us <= args.bound.as_micros() as f64
    });
    goals(&mut comparison);
    let met = comparison.finish()?;
    if names.contains(&POLL) {
        let cores = crate::peers::cores();
        println!(
            "{POLL}: nobody sleeps; its processes take all {cores} cores from each other, called or not."
        );
    }
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn build(way: &Way) -> io::Result<Shop> {
    match way {
        Way::Nearpath(chain) => Shop::nearpath(*chain).await,
        Way::Sidecars => Shop::sidecars().await,
        Way::Bare(transport) => Shop::bare(transport).await,
    }
}

async fn sample(chosen: &Chosen, customers: usize, args: &Args) -> io::Result<Measured> {
    match &chosen.shop {
        Some(shop) => visited(shop, customers, args).await,
        None => visited(&build(chosen.way).await?, customers, args).await,
    }
}

async fn visited(shop: &Shop, customers: usize, args: &Args) -> io::Result<Measured> {
    let window = args.measure.window();
    let (loaded, cpu) = measured(
        rush::run(&shop.place, customers, window),
        window,
        &shop.pids(),
    )
    .await;
    let loaded = loaded?;
    loaded
        .tally
        .failures()
        .iter()
        .for_each(|(failure, count)| eprintln!("{customers} customers: {count} × {failure}"));
    Ok(Measured::of(&loaded, window, cpu))
}

fn goals(comparison: &mut Comparison) {
    let rate: fn(&Row) -> f64 = |row| row.rps;
    let name = |what: &str, other: &str| format!("{what}, {HIGHEST}, ring/{other}");
    for (other, goal) in [("sidecars", 6.0), ("grpc", 5.0)] {
        let goal = Goal {
            value: rate,
            better: Better::Higher,
            goal,
        };
        comparison.ratio(&name("rate", other), HIGHEST, "ring", other, goal);
    }
    let cpu = Goal {
        value: |row| row.cpu_us_per_request,
        better: Better::Lower,
        goal: 0.1,
    };
    comparison.ratio(
        &name("CPU per request", "sidecars"),
        HIGHEST,
        "ring",
        "sidecars",
        cpu,
    );
}
