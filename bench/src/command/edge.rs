//! `edge`: nearpath's gateway and nginx, in front of the same handler, under the same load.
//!
//! CPU time is that of the gateway or nginx alone, master and workers: the handler and the load generator are the same for
//! both. Both have as many threads or workers as the machine has cores.

use std::process::ExitCode;
use std::time::Duration;

use super::load::measured;
use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, ROUNDS, Sample};
use crate::load::closed::{self, Reuse};
use crate::load::{Template, Window};
use crate::peer::nginx::Nginx;
use crate::peer::{Peer, cores, own};

const VARIANTS: [&str; 2] = ["nearpath", "nginx"];

/// Options of `edge`.
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
    #[arg(long, value_delimiter = ',', default_value = "1,32,256")]
    connections: Vec<usize>,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let handler = own::handler().await?;
    let nginx = Nginx::start(handler.addr, cores(), "/function/echo").await?;
    let gateway = own::gateway(handler.addr, cores()).await?;
    let peers = [&gateway, &nginx.peer];
    let mut comparison = Comparison::new("edge", args.rounds);
    for (way, reuse) in [("keep-alive", Reuse::KeepAlive), ("new-connection", Reuse::Fresh)] {
        for &callers in &args.connections {
            let case = format!("{way} {callers}");
            let one = async |variant: usize| sample(peers[variant], callers, reuse, &args).await;
            comparison.case(&case, &VARIANTS, one).await?;
            eprintln!("measured: {case}");
        }
    }
    ratios(&mut comparison);
    Ok(if comparison.finish()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn sample(peer: &Peer, callers: usize, reuse: Reuse, args: &Args) -> Result<Sample, http::Error> {
    let template = Template::get(peer.addr, "/function/echo")?;
    let window = Window::after(args.warm_up, args.duration);
    let (tally, cpu) = measured(closed::run(&template, callers, reuse, window), window, &[peer.pid()]).await;
    Ok(Sample::of(&tally, window, cpu))
}

/// Only the cases with 32 connections have goals.
fn ratios(comparison: &mut Comparison) {
    for case in ["keep-alive 32", "new-connection 32"] {
        let per_cpu = Goal { value: |row| 1e6 / row.cpu_us_per_request, better: Better::Higher, goal: 0.8 };
        comparison.ratio(
            &format!("requests per CPU second, {case}, nearpath/nginx"),
            case,
            "nearpath",
            "nginx",
            per_cpu,
        );
        let p99 = Goal { value: |row| row.p99_us, better: Better::Lower, goal: 2.0 };
        comparison.ratio(&format!("p99, {case}, nearpath/nginx"), case, "nearpath", "nginx", p99);
    }
}
