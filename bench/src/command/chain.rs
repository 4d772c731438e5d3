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

    /// Open a new connection for every request
    #[arg(long)]
    new_connection: bool,
}

impl ChainArgs {
    fn case_name(&self, program: &str, length: usize, callers: usize) -> String {
        let kind = if self.new_connection { "new" } else { "kept" };
        format!("{program}, {length}, {kind} {callers}")
    }

    fn reuse(&self) -> ConnectionReuse {
        match self.new_connection {
            true => ConnectionReuse::Fresh,
            false => ConnectionReuse::KeepAlive,
        }
    }
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
                let case = args.case_name(program.name(), length, callers);
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
    let load = epoll_client::run(&template, callers, args.reuse(), window);
    let (loaded, cpu) = measure_cpu(load, window, &chain.process_ids()).await;
    Ok(LoadSample::from_load(&loaded?, window, cpu))
}

/// A goal of nearpath against another variant, with kept connections.
struct ChainGoal {
    program: &'static str,
    length: usize,
    callers: usize,
    compared: Compared,
    other: &'static str,
    bound: f64,
}

#[derive(Clone, Copy)]
enum Compared {
    Cpu,
    Rate,
    P50,
}

const GOALS: [ChainGoal; 6] = [
    ChainGoal {
        program: "unmodified Go",
        length: 2,
        callers: 32,
        compared: Compared::Cpu,
        other: "sidecars",
        bound: 0.45,
    },
    ChainGoal {
        program: "unmodified Go",
        length: 2,
        callers: 32,
        compared: Compared::Rate,
        other: "sidecars",
        bound: 2.0,
    },
    ChainGoal {
        program: "unmodified Go",
        length: 6,
        callers: 1,
        compared: Compared::P50,
        other: "direct",
        bound: 1.5,
    },
    ChainGoal {
        program: "Rust SDK",
        length: 2,
        callers: 32,
        compared: Compared::Cpu,
        other: "sidecars",
        bound: 0.12,
    },
    ChainGoal {
        program: "Rust SDK",
        length: 2,
        callers: 32,
        compared: Compared::Rate,
        other: "sidecars",
        bound: 8.0,
    },
    ChainGoal {
        program: "Rust SDK",
        length: 2,
        callers: 32,
        compared: Compared::P50,
        other: "sidecars",
        bound: 0.125,
    },
];

fn add_ratios(comparison: &mut BenchComparison, args: &ChainArgs) {
    for ChainGoal {
        program,
        length,
        callers,
        compared,
        other,
        bound,
    } in GOALS
    {
        let is_measured = args.lengths.contains(&length) && args.connections.contains(&callers);
        if args.new_connection || !is_measured {
            continue;
        }
        let case = args.case_name(program, length, callers);
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
                goal: bound,
            },
        );
    }
}
