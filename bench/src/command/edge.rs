//! `edge`: the gateway alone and nginx, in front of the same handler, under the same load.
//!
//! No user runs the gateway alone: this comparison finds changes of the gateway's own cost. `default`
//! compares what users deploy.
//!
//! CPU time is that of the gateway or nginx alone, master and workers: handler and load generator
//! are the same for both. Both have one thread or worker per core.

use std::io;
use std::process::ExitCode;

use super::BenchOutcome;
use super::measure::{RateOptions, measure_cpu};
use crate::compare::{BenchComparison, BetterDirection, LoadSample, RatioGoal};
use crate::load::closed::ConnectionReuse;
use crate::load::{RequestTemplate, epoll_client};
use crate::peers::nginx::NginxServer;
use crate::peers::{PeerProcess, count_cores, own_programs};

const VARIANTS: [&str; 2] = ["gateway alone", "nginx"];

/// Options of `edge`.
#[derive(clap::Args)]
pub(crate) struct EdgeArgs {
    #[command(flatten)]
    measure: RateOptions,

    /// Set the numbers of concurrent connections, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32,256")]
    connections: Vec<usize>,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: EdgeArgs) -> BenchOutcome {
    let handler = own_programs::start_handler().await?;
    // As many workers as the gateway has threads.
    let nginx = NginxServer::start(handler.addr, count_cores(), "/function/echo").await?;
    let gateway = own_programs::start_gateway(handler.addr, count_cores()).await?;
    let peers = [&gateway, &nginx.peer];
    let mut comparison = BenchComparison::new("edge", args.measure.rounds);
    for (connection_name, reuse) in [
        ("keep-alive", ConnectionReuse::KeepAlive),
        ("new-connection", ConnectionReuse::Fresh),
    ] {
        for &callers in &args.connections {
            let case = format!("{connection_name} {callers}");
            let one =
                async |variant: usize| measure_peer(peers[variant], callers, reuse, &args).await;
            comparison.measure_loads(&case, &VARIANTS, one).await?;
            eprintln!("measured: {case}");
        }
    }
    add_ratios(&mut comparison);
    comparison.add_remark(
        "No user runs the gateway alone. `nearpath-bench default` compares what users deploy."
            .to_owned(),
    );
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn measure_peer(
    peer: &PeerProcess,
    callers: usize,
    reuse: ConnectionReuse,
    args: &EdgeArgs,
) -> io::Result<LoadSample> {
    let template =
        RequestTemplate::for_get(peer.addr, "/function/echo").map_err(io::Error::other)?;
    let window = args.measure.start_window();
    let (loaded, cpu) = measure_cpu(
        epoll_client::run(&template, callers, reuse, window),
        window,
        // The gateway or nginx alone: the handler behind both is the same.
        &[peer.pid()],
    )
    .await;
    Ok(LoadSample::from_load(&loaded?, window, cpu))
}

/// Adds goals for 32 connections.
fn add_ratios(comparison: &mut BenchComparison) {
    // At 32 connections both are busy; at one, latency of the loop dominates.
    for case in ["keep-alive 32", "new-connection 32"] {
        let per_cpu = RatioGoal {
            value: |row| 1e6 / row.cpu_us_per_request,
            better: BetterDirection::Higher,
            goal: 0.8,
        };
        comparison.add_ratio(
            &format!("requests per CPU second, {case}, gateway alone/nginx"),
            case,
            "gateway alone",
            "nginx",
            per_cpu,
        );
        let p99 = RatioGoal {
            value: |row| row.p99_us,
            better: BetterDirection::Lower,
            goal: 2.0,
        };
        comparison.add_ratio(
            &format!("p99, {case}, gateway alone/nginx"),
            case,
            "gateway alone",
            "nginx",
            p99,
        );
    }
}
