//! `audit`: counts the kernel work of one request, for each variant of a chain of two functions.
//! Writes `docs/reference/audit.md`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::BenchOutcome;
use crate::audit::{
    AuditResult, BpftraceProcess, EventCount, TracerCheck, count_by_perf, count_by_strace,
    render_page,
};
use crate::load::{RequestTemplate, counted};
use crate::peers::chain::FunctionChain;
use crate::{census, cpu};

/// Requests before the count starts: they open connections and rings.
const WARM_UP_REQUESTS: u64 = 500;

/// Variant whose endpoints never sleep. The variant runs only while it is counted: it would take
/// the processors from the others.
const POLL_VARIANT: &str = "poll";

/// Options of `audit`.
#[derive(clap::Args)]
pub(crate) struct AuditArgs {
    /// Count this number of requests in each case
    #[arg(long, default_value_t = 5_000)]
    requests: u64,

    /// Set the numbers of concurrent requests, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    callers: Vec<usize>,

    /// Write the page to this file
    #[arg(long, default_value = "docs/reference/audit.md")]
    page: PathBuf,
}

/// Runs the audit. The exit code is 1 if a request failed.
pub(crate) async fn run(args: AuditArgs) -> BenchOutcome {
    // All chains run from the start: a warm-up of one is then no idle time of the others.
    let chains = [
        ("ring", Some(FunctionChain::start_nearpath("ring").await?)),
        (
            "sockmap",
            Some(FunctionChain::start_nearpath("sockmap").await?),
        ),
        // Started only for its own measurement, since its endpoints would take the processors from
        // the rest.
        (POLL_VARIANT, None),
        ("sidecars", Some(FunctionChain::start_sidecars().await?)),
        ("direct http", Some(FunctionChain::start_direct().await?)),
    ];
    let mut audits = Vec::new();
    for &callers in &args.callers {
        for (variant, chain) in &chains {
            audits.push(match chain {
                Some(chain) => audit_chain(variant, chain, callers, args.requests).await?,
                None => {
                    audit_chain(
                        variant,
                        &FunctionChain::start_nearpath(POLL_VARIANT).await?,
                        callers,
                        args.requests,
                    )
                    .await?
                }
            });
            eprintln!("counted: {variant}, {callers}");
        }
    }
    std::fs::write(&args.page, render_page(&audits, &run_stamp(&args)?))?;
    println!("written: {}", args.page.display());
    let all = audits.iter().all(|audit| audit.requests == args.requests);
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn audit_chain(
    variant: &'static str,
    chain: &FunctionChain,
    callers: usize,
    requests: u64,
) -> io::Result<AuditResult> {
    let template =
        RequestTemplate::for_get(chain.entry, "/function/first").map_err(io::Error::other)?;
    let load = async |total| counted::run_counted(&template, callers, total).await;
    // Before the processes are listed: workers that start lazily exist by now.
    load(WARM_UP_REQUESTS).await;
    let pids = cpu::process_tree(&chain.process_ids());
    let tracer = BpftraceProcess::start(&pids).await?;
    // As many requests as configured and not a time: the page divides by them.
    let tally = load(requests).await;
    let mut programs = BTreeMap::<String, EventCount>::new();
    for (pid, count) in tracer.stop_and_read().await? {
        programs
            .entry(census::process_name(pid))
            .or_default()
            .add_count(&count);
    }
    let (perf, strace) = match (callers, variant) {
        (_, POLL_VARIANT) => (TracerCheck::default(), TracerCheck::default()), // they would stop it at each poll
        (1, _) => (
            count_by_perf(&pids, load(requests)).await?,
            count_by_strace(&pids, load(requests)).await?,
        ),
        // One load is enough to check the counting.
        _ => (TracerCheck::default(), TracerCheck::default()),
    };
    tally
        .failures_by_kind()
        .iter()
        .for_each(|(failure, times)| eprintln!("{variant}: {times} × {failure}"));
    Ok(AuditResult {
        variant,
        callers,
        requests: tally.answered_count(),
        programs,
        perf,
        strace,
    })
}

/// Describes date, kernel and machine of the run.
fn run_stamp(args: &AuditArgs) -> io::Result<String> {
    let line = |program: &str, option: &str| {
        let output = std::process::Command::new(program).arg(option).output()?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (kernel, date, cores) = (
        line("uname", "-sr")?,
        line("date", "+%F")?,
        crate::peers::count_cores(),
    );
    let kernel = kernel.split('-').next().unwrap_or_default(); // a distribution's suffix is not relevant
    let requests = args.requests;
    Ok(format!(
        "{kernel}, {cores} cores, {date}; {requests} requests in each case. {}",
        build_profile()?
    ))
}

/// Returns the build profile of the counted program.
fn build_profile() -> io::Result<&'static str> {
    let own = std::env::current_exe()?.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find(|folder| folder.join("nearpath").is_file());
    // By folder: `nearpath` in another profile would distort the comparison with the functions.
    let same = own.and_then(|own| own.canonicalize().ok())
        == found.and_then(|found| found.canonicalize().ok());
    Ok(match (same, cfg!(debug_assertions)) {
        (true, false) => "The build is optimised.",
        (true, true) => "**The build is not optimised**: `make audit` measures an optimised one.",
        (false, _) => {
            "**`nearpath` is from another build** than the functions and the load generator."
        }
    })
}
