//! `edge`: nearpath's gateway and nginx, in front of the same handler, under the same load.
//!
//! CPU time is that of the gateway or nginx alone, master and workers: the handler and the load generator are the same for
//! both. Both have as many threads or workers as the machine has cores.

use std::io;
use std::process::ExitCode;

use super::Outcome;
use super::measure::{Measure, measured};
use crate::compare::{Better, Comparison, Goal, Measured};
use crate::load::closed::Reuse;
use crate::load::{Template, lean};
use crate::peers::nginx::Nginx;
use crate::peers::{Peer, cores, own};

const VARIANTS: [&str; 2] = ["nearpath", "nginx"];

/// Options of `edge`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    measure: Measure,

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
    let mut comparison = Comparison::new("edge", args.measure.rounds);
    for (way, reuse) in [
        ("keep-alive", Reuse::KeepAlive),
        ("new-connection", Reuse::Fresh),
    ] {
        for &callers in &args.connections {
            let case = format!("{way} {callers}");
            let one = async |variant: usize| sample(peers[variant], callers, reuse, &args).await;
            comparison.loads(&case, &VARIANTS, one).await?;
            eprintln!("measured: {case}");
        }
    }
    ratios(&mut comparison);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn sample(peer: &Peer, callers: usize, reuse: Reuse, args: &Args) -> io::Result<Measured> {
    let template = Template::get(peer.addr, "/function/echo").map_err(io::Error::other)?;
    let window = args.measure.window();
    let (loaded, cpu) = measured(
        lean::run(&template, callers, reuse, window),
        window,
        &[peer.pid()],
    )
    .await;
    Ok(Measured::of(&loaded?, window, cpu))
}

/// Only the cases with 32 connections have goals.
fn ratios(comparison: &mut Comparison) {
    for case in ["keep-alive 32", "new-connection 32"] {
        let per_cpu = Goal {
            value: |row| 1e6 / row.cpu_us_per_request,
            better: Better::Higher,
            goal: 0.8,
        };
        comparison.ratio(
            &format!("requests per CPU second, {case}, nearpath/nginx"),
            case,
            "nearpath",
            "nginx",
            per_cpu,
        );
        let p99 = Goal {
            value: |row| row.p99_us,
            better: Better::Lower,
            goal: 2.0,
        };
        comparison.ratio(
            &format!("p99, {case}, nearpath/nginx"),
            case,
            "nearpath",
            "nginx",
            p99,
        );
    }
}
