//! `doctor`: checks prerequisites and explains how to fix what is missing.
//!
//! [`machine`] checks the environment of `nearpath up`, and [`egress`] the functions' connections
//! to destinations outside. [`udp`] checks the sockets for QUIC, and [`capabilities`] the kernel.
//! Nothing is changed.

mod capabilities;
mod egress;
mod machine;
mod ports;
mod udp;

use std::io::stdout;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::data_dir::default_data_dir;
use crate::exit::{CommandResult, ExitStatus};
use crate::output::{self, TextMeaning, TextStyle};

/// Options of `doctor`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DoctorArgs {
    /// Check this data directory [default: as `nearpath up`]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Print the checks as JSON
    #[arg(long)]
    pub json: bool,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    /// Fully available.
    Ok,
    /// Works, with a drawback.
    Warn,
    /// Does not work.
    Fail,
}

/// A check; the shape of `--json`, whose field names are stable.
#[derive(Debug, Clone, Serialize)]
struct Check {
    name: String,
    status: CheckStatus,
    found: String,
    /// The effect of a drawback.
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Nothing can run because of it.
    fatal: bool,
}

impl Check {
    fn ok(name: &str, found: impl Into<String>) -> Self {
        let (name, found) = (name.to_owned(), found.into());
        Self {
            name,
            status: CheckStatus::Ok,
            found,
            effect: None,
            remedy: None,
            fatal: false,
        }
    }

    fn warn(name: &str, found: impl Into<String>, effect: &str, remedy: &str) -> Self {
        let (effect, remedy) = (Some(effect.to_owned()), Some(remedy.to_owned()));
        Self {
            status: CheckStatus::Warn,
            effect,
            remedy,
            ..Self::ok(name, found)
        }
    }

    fn fail(name: &str, found: impl Into<String>, effect: &str, remedy: &str) -> Self {
        Self {
            status: CheckStatus::Fail,
            ..Self::warn(name, found, effect, remedy)
        }
    }

    /// A failed check without which nothing can run.
    fn fatal(name: &str, found: impl Into<String>, effect: &str, remedy: &str) -> Self {
        Self {
            fatal: true,
            ..Self::fail(name, found, effect, remedy)
        }
    }
}

#[derive(Serialize)]
struct DoctorReport {
    usable: bool,
    checks: Vec<Check>,
}

pub(crate) fn run(args: &DoctorArgs) -> CommandResult {
    let data_dir = args.data_dir.clone().unwrap_or_else(default_data_dir);
    let mut checks = machine::checks(&data_dir);
    checks.extend(ports::checks());
    checks.extend(udp::checks());
    checks.extend(capabilities::checks());
    checks.extend(egress::checks());
    // Drawbacks are no failure: scripts check whether functions can run here at all.
    let usable = !checks.iter().any(|check| check.fatal);
    match args.json {
        true => output::print_json(&DoctorReport { usable, checks })?,
        false => output::print(&format_page(
            &checks,
            usable,
            TextStyle::for_stream(&stdout()),
        ))?,
    }
    Ok(if usable {
        ExitStatus::Ok
    } else {
        ExitStatus::Failed
    })
}

fn format_page(checks: &[Check], usable: bool, style: TextStyle) -> String {
    let width = checks
        .iter()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    for check in checks {
        // Padded before colouring: escape sequences would count as columns.
        let (color, status) = match check.status {
            CheckStatus::Ok => (TextMeaning::Good, "ok  "),
            CheckStatus::Warn => (TextMeaning::Warning, "warn"),
            CheckStatus::Fail => (TextMeaning::Bad, "fail"),
        };
        out += &format!(
            "{}  {:<width$}  {}\n",
            style.paint(color, status),
            check.name,
            check.found
        );
        // 4 columns of status and two gaps of 2.
        let indent = " ".repeat(width + 8);
        out += &check
            .effect
            .as_ref()
            .map(|effect| format!("{indent}effect: {effect}\n"))
            .unwrap_or_default();
        out += &check
            .remedy
            .as_ref()
            .map(|remedy| format!("{indent}remedy: {remedy}\n"))
            .unwrap_or_default();
    }
    let bad = checks
        .iter()
        .filter(|check| check.status != CheckStatus::Ok)
        .count();
    let summary = match (usable, bad) {
        (false, _) => "no function can run on this machine until this is fixed".to_owned(),
        (true, 0) => "all checks passed".to_owned(),
        (true, bad) => format!(
            "functions can run; {bad} of {} checks found a drawback",
            checks.len()
        ),
    };
    format!("{out}\n{summary}\n")
}
