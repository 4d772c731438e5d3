//! `boutique`: the shop of ten services with different connections between them, at its highest
//! stable load. All variants run the same services; CPU time is that of every process of the
//! variant.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::measure::{RateOptions, measure_cpu};
use super::{BenchOutcome, parse_seconds};
use crate::boutique::closed_loop;
use crate::compare::{BenchComparison, BetterDirection, LoadSample, RatioGoal, ReportRow};
use crate::peers::boutique::{BoutiqueServer, ChainOptions};

/// Variants: a name, and how the shop is built.
const SHOP_VARIANTS: [(&str, ShopKind); 7] = [
    (
        "ring",
        ShopKind::Nearpath(ChainOptions {
            delivery: None,
            arguments: "",
        }),
    ),
    (
        "ring, protobuf",
        ShopKind::Nearpath(ChainOptions {
            delivery: None,
            arguments: "--encoding protobuf",
        }),
    ),
    (
        "sockmap",
        ShopKind::Nearpath(ChainOptions {
            delivery: Some("sockmap"),
            arguments: "",
        }),
    ),
    ("sidecars", ShopKind::Sidecars),
    // The published shop's own transport: HTTP alone would be a weak baseline.
    ("grpc", ShopKind::Bare("grpc")),
    ("direct http", ShopKind::Bare("http")),
    (
        POLL_VARIANT,
        ShopKind::Nearpath(ChainOptions {
            delivery: Some("poll"),
            arguments: "",
        }),
    ),
];
/// Variant whose services never sleep: ten services and the gateway's threads compete for the
/// processors. The variant runs only while it is measured, and with few customers.
const POLL_VARIANT: &str = "poll";
const HIGHEST_CASE: &str = "highest stable load";

/// Kinds of shops.
enum ShopKind {
    Nearpath(ChainOptions),
    Sidecars,
    Bare(&'static str),
}

/// Options of `boutique`.
#[derive(clap::Args)]
pub(crate) struct BoutiqueArgs {
    #[command(flatten)]
    measure: RateOptions,

    /// Set the numbers of concurrent customers, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
    customers: Vec<usize>,

    /// Limit the customers of `poll`: its services take every processor from each other
    #[arg(long, default_value_t = 8, value_name = "N")]
    poll_customers: usize,

    /// Set the latency limit in seconds of a stable load: no request fails, and 99 of 100 are
    /// within it
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    bound: Duration,

    /// Run only the variants with these names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// A chosen variant, which runs during all rounds if possible.
struct ChosenVariant {
    name: &'static str,
    way: &'static ShopKind,
    shop: Option<BoutiqueServer>,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: BoutiqueArgs) -> BenchOutcome {
    let mut chosen = Vec::new();
    for (name, way) in SHOP_VARIANTS
        .iter()
        .filter(|(name, _)| args.only.is_empty() || args.only.iter().any(|only| only == name))
    {
        let shop = if *name == POLL_VARIANT {
            None
        } else {
            Some(start_shop(way).await?)
        };
        chosen.push(ChosenVariant { name, way, shop });
    }
    let mut comparison = BenchComparison::new("boutique", args.measure.rounds);
    for &customers in &args.customers {
        let case = format!("customers {customers}");
        let ways: Vec<_> = chosen
            .iter()
            // Beyond that, polling processes starve each other and a round takes minutes.
            .filter(|one| one.name != POLL_VARIANT || customers <= args.poll_customers)
            .collect();
        let names: Vec<_> = ways.iter().map(|one| one.name).collect();
        comparison
            .measure_loads(&case, &names, async |way: usize| {
                measure_variant(ways[way], customers, &args).await
            })
            .await?;
        eprintln!("measured: {case}");
    }
    let names: Vec<_> = chosen.iter().map(|one| one.name).collect();
    // Stable is without failures and within the bound: a saturated shop answers more, but late.
    comparison.add_best(HIGHEST_CASE, &names, |row| {
        row.failed == 0 && row.p99_us <= args.bound.as_micros() as f64
    });
    add_goals(&mut comparison);
    let met = comparison.finish()?;
    if names.contains(&POLL_VARIANT) {
        let cores = crate::peers::count_cores();
        println!(
            "{POLL_VARIANT}: its processes never sleep and compete for all {cores} cores, also when idle."
        );
    }
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn start_shop(way: &ShopKind) -> io::Result<BoutiqueServer> {
    match way {
        ShopKind::Nearpath(chain) => BoutiqueServer::start_nearpath(*chain).await,
        ShopKind::Sidecars => BoutiqueServer::start_sidecars().await,
        ShopKind::Bare(transport) => BoutiqueServer::start_bare(transport).await,
    }
}

async fn measure_variant(
    chosen: &ChosenVariant,
    customers: usize,
    args: &BoutiqueArgs,
) -> io::Result<LoadSample> {
    match &chosen.shop {
        // Services stay up between cases, as they do in production.
        Some(shop) => measure_shop(shop, customers, args).await,
        None => measure_shop(&start_shop(chosen.way).await?, customers, args).await,
    }
}

async fn measure_shop(
    shop: &BoutiqueServer,
    customers: usize,
    args: &BoutiqueArgs,
) -> io::Result<LoadSample> {
    let window = args.measure.start_window();
    let (loaded, cpu) = measure_cpu(
        closed_loop::run(&shop.place, customers, window),
        window,
        &shop.process_ids(),
    )
    .await;
    let loaded = loaded?;
    loaded
        .tally
        .failures_by_kind()
        .iter()
        .for_each(|(failure, count)| eprintln!("{customers} customers: {count} × {failure}"));
    Ok(LoadSample::from_load(&loaded, window, cpu))
}

fn add_goals(comparison: &mut BenchComparison) {
    let rate: fn(&ReportRow) -> f64 = |row| row.rps;
    let name = |what: &str, other: &str| format!("{what}, {HIGHEST_CASE}, ring/{other}");
    // Goals of the highest stable load; docs/guide/measuring.md has the list.
    for (other, goal) in [("sidecars", 6.0), ("grpc", 5.0)] {
        let goal = RatioGoal {
            value: rate,
            better: BetterDirection::Higher,
            goal,
        };
        comparison.add_ratio(&name("rate", other), HIGHEST_CASE, "ring", other, goal);
    }
    let cpu = RatioGoal {
        value: |row| row.cpu_us_per_request,
        better: BetterDirection::Lower,
        goal: 0.1,
    };
    comparison.add_ratio(
        &name("CPU per request", "sidecars"),
        HIGHEST_CASE,
        "ring",
        "sidecars",
        cpu,
    );
}
