//! `report`: writes the page with the results of all comparisons.

use std::path::PathBuf;
use std::process::ExitCode;

use super::BenchOutcome;
use crate::compare::results_page;

/// Options of `report`.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Write the page to this file
    #[arg(long, default_value = "docs/reference/results.md", value_name = "FILE")]
    out: PathBuf,
}

/// Writes the page.
pub(crate) fn run(args: &ReportArgs) -> BenchOutcome {
    std::fs::write(&args.out, results_page::render_all()?)?;
    println!("written: {}", args.out.display());
    Ok(ExitCode::SUCCESS)
}
