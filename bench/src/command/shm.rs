//! `shm`: implementations of a chain of two functions behind a front end. The first function calls
//! the second before it responds. CPU time is that of every process of the chain.

use std::cell::RefCell;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::sleep_until;

use super::BenchOutcome;
use super::measure::{RateOptions, measure_cpu};
use crate::census::ProcessCensus;
use crate::compare::{
    BenchComparison, BetterDirection, GoalRatio, LoadSample, RatioGoal, ReportRow, median_of,
};
use crate::load::closed::ConnectionReuse;
use crate::load::{RequestTemplate, epoll_client};
use crate::peers::chain::FunctionChain;

/// All variants except the last run during all rounds. Polling endpoints would take the processors
/// from the others: their chain runs only while it is measured.
const VARIANTS: [&str; 7] = [
    "ring",
    "ring, one core",
    "sockmap",
    "sidecars",
    "direct http",
    "nginx, one function",
    "poll",
];

/// Variant with the goals: the recommended deployment of chains of small fast functions.
const PLACED_VARIANT: &str = "ring, one core";

/// Options of `shm`.
#[derive(clap::Args)]
pub(crate) struct ShmArgs {
    #[command(flatten)]
    measure: RateOptions,

    /// Set the numbers of concurrent connections, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    connections: Vec<usize>,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: ShmArgs) -> BenchOutcome {
    // In the order of VARIANTS; the last one, poll, is started for each measurement.
    let chains = [
        FunctionChain::start_nearpath("ring").await?,
        FunctionChain::start_placed("ring", "core", Duration::ZERO).await?,
        FunctionChain::start_nearpath("sockmap").await?,
        FunctionChain::start_sidecars().await?,
        FunctionChain::start_direct().await?,
        FunctionChain::start_behind_nginx().await?,
    ];
    let mut comparison = BenchComparison::new("shm", args.measure.rounds);
    for (connection_name, reuse) in [
        ("keep-alive", ConnectionReuse::KeepAlive),
        ("new-connection", ConnectionReuse::Fresh),
    ] {
        for &callers in &args.connections {
            let case = format!("{connection_name} {callers}");
            let ring = RefCell::new(Vec::new());
            let one = async |variant: usize| {
                let (sample, functions) = match chains.get(variant) {
                    Some(chain) => measure_chain(chain, callers, reuse, &args).await?,
                    // Dropped after the sample, so that its polling ends with it.
                    None => {
                        measure_chain(
                            &FunctionChain::start_nearpath("poll").await?,
                            callers,
                            reuse,
                            &args,
                        )
                        .await?
                    }
                };
                if VARIANTS[variant] == PLACED_VARIANT {
                    ring.borrow_mut().push(functions);
                }
                Ok::<_, io::Error>(sample)
            };
            comparison.measure_loads(&case, &VARIANTS, one).await?;
            eprintln!("measured: {case}");
            add_published(&mut comparison, &case, ring.into_inner());
        }
    }
    add_goals(&mut comparison);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Measures a chain. Returns the sample, and the CPU time of the functions alone per request, in
/// microseconds.
async fn measure_chain(
    chain: &FunctionChain,
    callers: usize,
    reuse: ConnectionReuse,
    args: &ShmArgs,
) -> io::Result<(LoadSample, f64)> {
    let template =
        RequestTemplate::for_get(chain.entry, "/function/first").map_err(io::Error::other)?;
    let window = args.measure.start_window();
    let pids = chain.process_ids();
    // Beside `measure_cpu`, which has all processes: here the functions alone, by their name.
    let watching = async {
        sleep_until(window.from).await;
        let before = ProcessCensus::take_census(&pids);
        sleep_until(window.until).await;
        before
            .usage_until(&ProcessCensus::take_census(&pids))
            .remove("function")
            .unwrap_or_default()
            .cpu
    };
    let load = epoll_client::run(&template, callers, reuse, window);
    let ((loaded, cpu), functions) = tokio::join!(measure_cpu(load, window, &pids), watching);
    let loaded = loaded?;
    let us = functions.as_nanos() as f64 / 1e3 / loaded.tally.answered_count().max(1) as f64;
    Ok((LoadSample::from_load(&loaded, window, cpu), us))
}

/// Goals relative to the published system on such a machine with 32 connections, each closed after
/// its response: 59 µs of CPU per request, 29 of them in the two functions. The goals are a half
/// and a third.
fn add_published(comparison: &mut BenchComparison, case: &str, functions: Vec<f64>) {
    const TOTAL_US: f64 = 59.0;
    const FUNCTIONS_US: f64 = 29.0;
    // The published figures are for connections that close after each answer.
    if case != "new-connection 32" {
        return;
    }
    let figure = |name: &str, value, goal| {
        let name = format!("CPU µs per request, {case}, {PLACED_VARIANT}, {name}");
        GoalRatio {
            name,
            value,
            better: BetterDirection::Lower,
            goal,
        }
    };
    if let Some(value) = comparison.row_value(case, PLACED_VARIANT, |row| row.cpu_us_per_request) {
        comparison.add_figure(figure("all", value, TOTAL_US / 2.0));
    }
    comparison.add_figure(figure(
        "functions",
        median_of(functions.into_iter()),
        FUNCTIONS_US / 3.0,
    ));
}

/// Adds goals for 32 connections.
fn add_goals(comparison: &mut BenchComparison) {
    let rate: fn(&ReportRow) -> f64 = |row| row.rps;
    let goal = |value, better, goal| RatioGoal {
        value,
        better,
        goal,
    };
    let case = "keep-alive 32";
    let name = |what: &str, other: &str| format!("{what}, {case}, {PLACED_VARIANT}/{other}");
    comparison.add_ratio(
        &name("rate", "sidecars"),
        case,
        PLACED_VARIANT,
        "sidecars",
        goal(rate, BetterDirection::Higher, 5.0),
    );
    let least = "nginx, one function";
    comparison.add_ratio(
        // Two functions in a chain against nginx in front of one: the chain must not be slower.
        &name("rate", least),
        case,
        PLACED_VARIANT,
        least,
        goal(rate, BetterDirection::Higher, 1.0),
    );
    let cpu = goal(
        |row| row.cpu_us_per_request,
        BetterDirection::Lower,
        1.0 / 6.0,
    );
    comparison.add_ratio(
        &name("CPU per request", "sidecars"),
        case,
        PLACED_VARIANT,
        "sidecars",
        cpu,
    );
    let latency = goal(|row| row.p50_us, BetterDirection::Lower, 1.0 / 6.0);
    comparison.add_ratio(
        &name("median latency", "sidecars"),
        case,
        PLACED_VARIANT,
        "sidecars",
        latency,
    );
}
