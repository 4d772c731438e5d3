//! `shm`: a chain of two functions behind an entry, by the ways to build it. The first function asks the second before it
//! answers. CPU time is that of every process of the chain.

use std::process::ExitCode;
use std::time::Duration;

use super::load::measured;
use super::{Outcome, seconds};
use crate::compare::{Comparison, ROUNDS, Sample};
use crate::load::closed::{self, Reuse};
use crate::load::{Template, Window};
use crate::peer::chain::Chain;

const VARIANTS: [&str; 3] = ["sidecars", "direct http", "nginx, one function"];

/// Options of `shm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "2", value_parser = seconds)]
    duration: Duration,

    /// How long it runs before counting, in seconds
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    warm_up: Duration,

    /// Connections at a time, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    connections: Vec<usize>,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let chains = [Chain::sidecars().await?, Chain::direct().await?, Chain::one_behind_nginx().await?];
    let mut comparison = Comparison::new("shm", args.rounds);
    for (way, reuse) in [("keep-alive", Reuse::KeepAlive), ("new-connection", Reuse::Fresh)] {
        for &callers in &args.connections {
            let case = format!("{way} {callers}");
            let one = async |variant: usize| sample(&chains[variant], callers, reuse, &args).await;
            comparison.case(&case, &VARIANTS, one).await?;
            eprintln!("measured: {case}");
        }
    }
    Ok(if comparison.finish()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn sample(chain: &Chain, callers: usize, reuse: Reuse, args: &Args) -> Result<Sample, http::Error> {
    let template = Template::get(chain.entry, "/function/first")?;
    let window = Window::after(args.warm_up, args.duration);
    let (tally, cpu) = measured(closed::run(&template, callers, reuse, window), window, &chain.pids()).await;
    Ok(Sample::of(&tally, window, cpu))
}
