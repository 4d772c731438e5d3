//! `boutique`: the shop of ten services, by the ways to connect them, with as many customers as it can take. Each way runs
//! the same services; CPU time is that of every process of the way.

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::sleep_until;

use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, ROUNDS, Row, Sample};
use crate::cpu;
use crate::load::Window;
use crate::peer::shop::{Chain, Shop};
use crate::shop::rush;

/// The ways: a name, and how it is built. Another delivery of nearpath's is one line here.
const WAYS: [(&str, Way); 5] = [
    ("ring", Way::Nearpath(Chain { delivery: None, arguments: "" })),
    ("ring, protobuf", Way::Nearpath(Chain { delivery: None, arguments: "--encoding protobuf" })),
    ("sidecars", Way::Sidecars),
    ("grpc", Way::Bare("grpc")),
    ("direct http", Way::Bare("http")),
];
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
    /// How often each way is measured with each number of customers
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "2", value_parser = seconds)]
    duration: Duration,

    /// How long it runs before counting, in seconds
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    warm_up: Duration,

    /// Customers at a time, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
    customers: Vec<usize>,

    /// A load is stable when no request fails and 99 of 100 are answered within this, in seconds
    #[arg(long, default_value = "0.1", value_parser = seconds)]
    bound: Duration,

    /// Only the ways whose names are given
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// What one case cost the load generator itself, by way.
struct Own {
    case: String,
    way: &'static str,
    us: f64,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    tokio::task::LocalSet::new().run_until(compare(args)).await
}

async fn compare(args: Args) -> Outcome {
    let chosen = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let ways: Vec<_> = WAYS.iter().filter(|(name, _)| chosen(name)).collect();
    let names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
    let mut shops = Vec::new();
    for (_, way) in &ways {
        shops.push(build(way).await?);
    }
    let (mut comparison, mut own) = (Comparison::new("boutique", args.rounds), Vec::new());
    for &customers in &args.customers {
        let case = format!("customers {customers}");
        let one = async |way: usize| {
            let (sample, us) = sample(&shops[way], customers, &args).await;
            own.push(Own { case: case.clone(), way: names[way], us });
            Ok::<_, std::io::Error>(sample)
        };
        comparison.case(&case, &names, one).await?;
        eprintln!("measured: {case}");
    }
    comparison.best(HIGHEST, &names, |row| row.failed == 0 && row.p99_us <= args.bound.as_micros() as f64);
    goals(&mut comparison);
    let met = comparison.finish()?;
    footer(&args, &names, &own);
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn build(way: &Way) -> std::io::Result<Shop> {
    match way {
        Way::Nearpath(chain) => Shop::nearpath(*chain).await,
        Way::Sidecars => Shop::sidecars().await,
        Way::Bare(transport) => Shop::bare(transport).await,
    }
}

/// One measurement, and the load generator's own CPU time by request, in microseconds.
async fn sample(shop: &Shop, customers: usize, args: &Args) -> (Sample, f64) {
    let (window, pids) = (Window::after(args.warm_up, args.duration), shop.pids());
    let clock = async {
        sleep_until(window.from).await;
        let before = (cpu::spent(&pids), cpu::own());
        sleep_until(window.until).await;
        (cpu::spent(&pids).saturating_sub(before.0), cpu::own().saturating_sub(before.1))
    };
    let (tally, (cpu, own)) = tokio::join!(rush::run(&shop.place, customers, window), clock);
    tally.failures().iter().for_each(|(failure, count)| eprintln!("{customers} customers: {count} × {failure}"));
    (Sample::of(&tally, window, cpu), own.as_nanos() as f64 / 1e3 / tally.answered().max(1) as f64)
}

fn goals(comparison: &mut Comparison) {
    let rate: fn(&Row) -> f64 = |row| row.rps;
    let name = |what: &str, other: &str| format!("{what}, {HIGHEST}, ring/{other}");
    for (other, goal) in [("sidecars", 6.0), ("grpc", 5.0)] {
        let goal = Goal { value: rate, better: Better::Higher, goal };
        comparison.ratio(&name("rate", other), HIGHEST, "ring", other, goal);
    }
    let cpu = Goal { value: |row| row.cpu_us_per_request, better: Better::Lower, goal: 0.1 };
    comparison.ratio(&name("CPU per request", "sidecars"), HIGHEST, "ring", "sidecars", cpu);
}

fn footer(args: &Args, names: &[&str], own: &[Own]) {
    println!("\nOn the same cores, the load generator's own CPU time, µs a request:");
    for customers in &args.customers {
        let case = format!("customers {customers}");
        let text = |name: &&str| {
            let ours = own.iter().filter(|one| one.case == case && one.way == *name);
            format!("{name} {:.1}", crate::compare::median(ours.map(|one| one.us)))
        };
        let texts: Vec<_> = names.iter().map(text).collect();
        println!("{case}: {}", texts.join(", "));
    }
}
