//! `shm`: a chain of two functions behind an entry, by the ways to build it. The first function asks the second before it
//! answers. CPU time is that of every process of the chain.

use std::cell::RefCell;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::sleep_until;

use super::Outcome;
use super::measure::{Measure, measured};
use crate::census::Census;
use crate::compare::{Better, Comparison, Goal, Measured, Ratio, Row, median};
use crate::load::closed::Reuse;
use crate::load::{Template, lean};
use crate::peers::chain::Chain;

/// All but the last stand for the whole run. Parties that poll would take every processor from the others: that chain is
/// there only while it is measured.
const VARIANTS: [&str; 7] = [
    "ring",
    "ring, one core",
    "sockmap",
    "sidecars",
    "direct http",
    "nginx, one function",
    "poll",
];

/// Who has the goals: the way to deploy a chain of small functions that must be fast.
const PLACED: &str = "ring, one core";

/// Options of `shm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    measure: Measure,

    /// Connections at a time, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    connections: Vec<usize>,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let chains = [
        Chain::nearpath("ring").await?,
        Chain::placed("ring", "core", Duration::ZERO).await?,
        Chain::nearpath("sockmap").await?,
        Chain::sidecars().await?,
        Chain::direct().await?,
        Chain::one_behind_nginx().await?,
    ];
    let mut comparison = Comparison::new("shm", args.measure.rounds);
    for (way, reuse) in [
        ("keep-alive", Reuse::KeepAlive),
        ("new-connection", Reuse::Fresh),
    ] {
        for &callers in &args.connections {
            let case = format!("{way} {callers}");
            let ring = RefCell::new(Vec::new());
            let one = async |variant: usize| {
                let (sample, functions) = match chains.get(variant) {
                    Some(chain) => sample(chain, callers, reuse, &args).await?,
                    None => sample(&Chain::nearpath("poll").await?, callers, reuse, &args).await?,
                };
                if VARIANTS[variant] == PLACED {
                    ring.borrow_mut().push(functions);
                }
                Ok::<_, io::Error>(sample)
            };
            comparison.loads(&case, &VARIANTS, one).await?;
            eprintln!("measured: {case}");
            published(&mut comparison, &case, ring.into_inner());
        }
    }
    goals(&mut comparison);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The sample, and what the functions alone spent on a request, in microseconds.
async fn sample(
    chain: &Chain,
    callers: usize,
    reuse: Reuse,
    args: &Args,
) -> io::Result<(Measured, f64)> {
    let template = Template::get(chain.entry, "/function/first").map_err(io::Error::other)?;
    let window = args.measure.window();
    let pids = chain.pids();
    let watching = async {
        sleep_until(window.from).await;
        let before = Census::take(&pids);
        sleep_until(window.until).await;
        before
            .until(&Census::take(&pids))
            .remove("function")
            .unwrap_or_default()
            .cpu
    };
    let load = lean::run(&template, callers, reuse, window);
    let ((loaded, cpu), functions) = tokio::join!(measured(load, window, &pids), watching);
    let loaded = loaded?;
    let us = functions.as_nanos() as f64 / 1e3 / loaded.tally.answered().max(1) as f64;
    Ok((Measured::of(&loaded, window, cpu), us))
}

/// The published program on such a machine, 32 connections, each closed after its answer: 59 µs of CPU a request, 29 of them
/// in the two functions. To be reached: a half, and a third.
fn published(comparison: &mut Comparison, case: &str, functions: Vec<f64>) {
    const ALL: f64 = 59.0;
    const FUNCTIONS: f64 = 29.0;
    if case != "new-connection 32" {
        return;
    }
    let figure = |name: &str, value, goal| {
        let name = format!("CPU µs per request, {case}, {PLACED}, {name}");
        Ratio {
            name,
            value,
            better: Better::Lower,
            goal,
        }
    };
    if let Some(value) = comparison.value(case, PLACED, |row| row.cpu_us_per_request) {
        comparison.figure(figure("all", value, ALL / 2.0));
    }
    comparison.figure(figure(
        "the functions",
        median(functions.into_iter()),
        FUNCTIONS / 3.0,
    ));
}

/// Only concurrency 32 has goals.
fn goals(comparison: &mut Comparison) {
    let rate: fn(&Row) -> f64 = |row| row.rps;
    let goal = |value, better, goal| Goal {
        value,
        better,
        goal,
    };
    let case = "keep-alive 32";
    let name = |what: &str, other: &str| format!("{what}, {case}, {PLACED}/{other}");
    comparison.ratio(
        &name("rate", "sidecars"),
        case,
        PLACED,
        "sidecars",
        goal(rate, Better::Higher, 5.0),
    );
    let least = "nginx, one function";
    comparison.ratio(
        &name("rate", least),
        case,
        PLACED,
        least,
        goal(rate, Better::Higher, 1.0),
    );
    let cpu = goal(|row| row.cpu_us_per_request, Better::Lower, 1.0 / 6.0);
    comparison.ratio(
        &name("CPU per request", "sidecars"),
        case,
        PLACED,
        "sidecars",
        cpu,
    );
    let latency = goal(|row| row.p50_us, Better::Lower, 1.0 / 6.0);
    comparison.ratio(
        &name("median latency", "sidecars"),
        case,
        PLACED,
        "sidecars",
        latency,
    );
}
