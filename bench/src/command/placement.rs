//! `placement`: a chain of two functions behind the gateway, by where its functions run (`nearpath.io/placement`). Small
//! functions, which spend their time waking each other, and functions that compute, for which one core is too little.
//!
//! The node looks at a chain every two seconds. So `auto` shows what it has come to only after a warm-up that is longer.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::measure::measured;
use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, Measured};
use crate::load::closed::Reuse;
use crate::load::{Template, Window, tight};
use crate::peer::chain::Chain;

const VARIANTS: [&str; 3] = ["spread", "core", "auto"];
/// What each function does on a call.
const WORK: [(&str, Duration); 2] = [("small", Duration::ZERO), ("computes 100 µs", Duration::from_micros(100))];

/// Options of `placement`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured in each case
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "2", value_parser = seconds)]
    duration: Duration,

    /// How long it runs before counting, in seconds
    #[arg(long, default_value = "3", value_parser = seconds)]
    warm_up: Duration,

    /// Connections at a time, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    connections: Vec<usize>,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let mut comparison = Comparison::new("placement", args.rounds);
    for (what, work) in WORK {
        let mut chains = Vec::new();
        for place in VARIANTS {
            chains.push(Chain::placed("ring", place, work).await?);
        }
        for &callers in &args.connections {
            let case = format!("{what} {callers}");
            let one = async |variant: usize| sample(&chains[variant], callers, &args).await;
            comparison.loads(&case, &VARIANTS, one).await?;
            eprintln!("measured: {case}");
        }
    }
    goals(&mut comparison);
    Ok(if comparison.finish()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn sample(chain: &Chain, callers: usize, args: &Args) -> io::Result<Measured> {
    let template = Template::get(chain.entry, "/function/first").map_err(io::Error::other)?;
    let window = Window::after(args.warm_up, args.duration);
    let load = tight::run(&template, callers, Reuse::KeepAlive, window);
    let (loaded, cpu) = measured(load, window, &chain.pids()).await;
    Ok(Measured::of(&loaded?, window, cpu))
}

/// One core is cheaper for a small chain, and `auto` is not locked in there when it computes.
fn goals(comparison: &mut Comparison) {
    let cpu = Goal { value: |row| row.cpu_us_per_request, better: Better::Lower, goal: 1.0 };
    comparison.ratio("CPU per request, small 32, core/spread", "small 32", "core", "spread", cpu);
    let rate = Goal { value: |row| row.rps, better: Better::Higher, goal: 0.9 };
    comparison.ratio("rate, computes 100 µs 32, auto/spread", "computes 100 µs 32", "auto", "spread", rate);
}
