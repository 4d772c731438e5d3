//! `chain`: chains of functions, each calling the next, on nearpath, behind sidecars, and without a
//! proxy.
//!
//! CPU time is that of all processes, the functions' included. The unmodified functions are `net/http`
//! in Go. Those with the SDK are this program: it calls over HTTP where no SDK can help.

use std::io;
use std::process::ExitCode;

use bytes::Bytes;
use http::Method;

use super::BenchOutcome;
use super::measure::{RateOptions, measure_cpu};
use crate::compare::{BenchComparison, BetterDirection, LoadSample, RatioGoal, ReportRow};
use crate::load::closed::ConnectionReuse;
use crate::load::{RequestTemplate, epoll_client};
use crate::peers::chain_program::{ChainProgram, ChainProgramKind};
use crate::peers::many_chains::ManyChains;

const VARIANTS: [&str; 3] = ["direct", "sidecars", "nearpath"];
/// Length of a request's body.
const BODY_BYTES: usize = 100;

/// Options of `chain`.
// nearpath needs about 8 s under load until its placement of a chain by measurement settles.
#[derive(clap::Args)]
#[command(mut_arg("warm_up", |option| option.default_value("8")))]
pub(crate) struct ChainArgs {
    #[command(flatten)]
    measure: RateOptions,

    /// Set the numbers of concurrent connections, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    connections: Vec<usize>,

    /// Set the numbers of functions, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,2,6")]
    lengths: Vec<usize>,

    /// Measure functions of these kinds
    #[arg(long, value_delimiter = ',', default_value = "go,sdk", value_enum)]
    programs: Vec<ChainProgramKind>,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: ChainArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("chain", args.measure.rounds);
    for &kind in &args.programs {
        let program = ChainProgram::prepare(kind)?;
        for &length in &args.lengths {
            let chains = [
                ManyChains::start_direct(&program, length).await?,
                ManyChains::start_sidecars(&program, 1, length).await?,
                ManyChains::start_nearpath(&program, 1, length).await?,
            ];
            for chain in &chains {
                chain.warm_chains().await?;
            }
            for &callers in &args.connections {
                let case = case_name(program.name(), length, callers);
                let one =
                    async |variant: usize| measure_chain(&chains[variant], callers, &args).await;
                comparison.measure_loads(&case, &VARIANTS, one).await?;
                eprintln!("measured: {case}");
            }
        }
    }
    add_ratios(&mut comparison, &args);
    Ok(match comparison.finish()? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn case_name(program: &str, length: usize, callers: usize) -> String {
    format!("{program}, {length}, kept {callers}")
}

async fn measure_chain(
    chain: &ManyChains,
    callers: usize,
    args: &ChainArgs,
) -> io::Result<LoadSample> {
    let (addr, path) = chain
        .first_entry()
        .ok_or_else(|| io::Error::other("a chain needs a function"))?;
    let template = RequestTemplate {
        method: Method::POST,
        body: Bytes::from_static(&[b'x'; BODY_BYTES]),
        ..RequestTemplate::for_get(addr, path).map_err(io::Error::other)?
    };
    let window = args.measure.start_window();
    let load = epoll_client::run(&template, callers, ConnectionReuse::KeepAlive, window);
    let (loaded, cpu) = measure_cpu(load, window, &chain.process_ids()).await;
    Ok(LoadSample::from_load(&loaded?, window, cpu))
}

/// A goal: program, functions, connections, what is compared, the other variant, and the bound.
type ChainGoal = (&'static str, usize, usize, Compared, &'static str, f64);

#[derive(Clone, Copy)]
enum Compared {
    Cpu,
    Rate,
    P50,
}

const GOALS: [ChainGoal; 6] = [
    ("unmodified Go", 2, 32, Compared::Cpu, "sidecars", 0.45),
    ("unmodified Go", 2, 32, Compared::Rate, "sidecars", 2.0),
    ("unmodified Go", 6, 1, Compared::P50, "direct", 1.5),
    ("Rust SDK", 2, 32, Compared::Cpu, "sidecars", 0.12),
    ("Rust SDK", 2, 32, Compared::Rate, "sidecars", 8.0),
    ("Rust SDK", 2, 32, Compared::P50, "sidecars", 0.125),
];

fn add_ratios(comparison: &mut BenchComparison, args: &ChainArgs) {
    for (program, length, callers, compared, other, goal) in GOALS {
        if !args.lengths.contains(&length) || !args.connections.contains(&callers) {
            continue;
        }
        let case = case_name(program, length, callers);
        let (name, value, better): (_, fn(&ReportRow) -> f64, _) = match compared {
            Compared::Cpu => ("CPU", |row| row.cpu_us_per_request, BetterDirection::Lower),
            Compared::Rate => ("rate", |row| row.rps, BetterDirection::Higher),
            Compared::P50 => ("p50", |row| row.p50_us, BetterDirection::Lower),
        };
        comparison.add_ratio(
            &format!("{name}, {case}, nearpath/{other}"),
            &case,
            "nearpath",
            other,
            RatioGoal {
                value,
                better,
                goal,
            },
        );
    }
}
