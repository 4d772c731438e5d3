//! `audit`: what one request makes processes and the kernel do, in each way to build a chain of two functions. Writes
//! `docs/reference/audit.md`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Outcome;
use crate::audit::{Audit, Check, Count, Tracer, by_perf, by_strace, render};
use crate::load::{Template, counted};
use crate::peers::chain::Chain;
use crate::{census, cpu};

/// Requests before anything is counted: connections and rings are there afterwards.
const WARM_UP: u64 = 500;

/// The way whose parties never sleep: it is there only while it is counted, or it would take the processors from the others.
const POLL: &str = "poll";

/// Options of `audit`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests that are counted in each case
    #[arg(long, default_value_t = 5_000)]
    requests: u64,

    /// Requests at a time, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    callers: Vec<usize>,

    /// Where to write the page
    #[arg(long, default_value = "docs/reference/audit.md")]
    page: PathBuf,
}

/// Exit code 1 when a request failed.
pub(crate) async fn run(args: Args) -> Outcome {
    let standing = [
        ("ring", Some(Chain::nearpath("ring").await?)),
        ("sockmap", Some(Chain::nearpath("sockmap").await?)),
        (POLL, None),
        ("sidecars", Some(Chain::sidecars().await?)),
        ("direct http", Some(Chain::direct().await?)),
    ];
    let mut audits = Vec::new();
    for &callers in &args.callers {
        for (variant, chain) in &standing {
            audits.push(match chain {
                Some(chain) => audit(variant, chain, callers, args.requests).await?,
                None => {
                    audit(
                        variant,
                        &Chain::nearpath(POLL).await?,
                        callers,
                        args.requests,
                    )
                    .await?
                }
            });
            eprintln!("counted: {variant}, {callers}");
        }
    }
    std::fs::write(&args.page, render(&audits, &stamp(&args)?))?;
    println!("written: {}", args.page.display());
    let all = audits.iter().all(|audit| audit.requests == args.requests);
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn audit(
    variant: &'static str,
    chain: &Chain,
    callers: usize,
    requests: u64,
) -> io::Result<Audit> {
    let template = Template::get(chain.entry, "/function/first").map_err(io::Error::other)?;
    let load = async |total| counted::run(&template, callers, total).await;
    load(WARM_UP).await;
    let pids = cpu::everybody(&chain.pids());
    let tracer = Tracer::start(&pids).await?;
    let tally = load(requests).await;
    let mut programs = BTreeMap::<String, Count>::new();
    for (pid, count) in tracer.end().await? {
        programs.entry(census::name(pid)).or_default().add(&count);
    }
    let (perf, strace) = match (callers, variant) {
        (_, POLL) => (Check::default(), Check::default()), // they would stop it at each look
        (1, _) => (
            by_perf(&pids, load(requests)).await?,
            by_strace(&pids, load(requests)).await?,
        ),
        _ => (Check::default(), Check::default()),
    };
    tally
        .failures()
        .iter()
        .for_each(|(what, times)| eprintln!("{variant}: {times} × {what}"));
    Ok(Audit {
        variant,
        callers,
        requests: tally.answered(),
        programs,
        perf,
        strace,
    })
}

/// When and on what.
fn stamp(args: &Args) -> io::Result<String> {
    let line = |program: &str, option: &str| {
        let output = std::process::Command::new(program).arg(option).output()?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (kernel, date, cores) = (
        line("uname", "-sr")?,
        line("date", "+%F")?,
        crate::peers::cores(),
    );
    let kernel = kernel.split('-').next().unwrap_or_default(); // what a distribution appends says little
    let requests = args.requests;
    Ok(format!(
        "{kernel}, {cores} cores, {date}; {requests} requests in each case. {}",
        build()?
    ))
}

/// What kind of program was counted.
fn build() -> io::Result<&'static str> {
    let own = std::env::current_exe()?.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find(|folder| folder.join("nearpath").is_file());
    let same = own.and_then(|own| own.canonicalize().ok())
        == found.and_then(|found| found.canonicalize().ok());
    Ok(match (same, cfg!(debug_assertions)) {
        (true, false) => "An optimised build.",
        (true, true) => {
            "**An unoptimised build**: `make audit` makes the page from an optimised one."
        }
        (false, _) => {
            "**`nearpath` is from another build** than the functions and the load generator."
        }
    })
}
