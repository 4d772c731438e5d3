//! `doctor`: what this machine can do, what is lost where it cannot, and what to do about it.
//!
//! [`machine`] looks at what `nearpath up` needs around it, [`egress`] at how functions get outside, [`crate::capabilities`] asks the kernel. Nothing is changed.

mod egress;
mod machine;
mod ports;
mod udp;

use std::io::stdout;

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::data_dir::default_data_dir;
use crate::exit::{Exit, Outcome};
use crate::output::{self, Paint, Style};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, with a drawback.
    Warn,
    /// Something does not work.
    Lost,
}

/// One thing that was looked at; also the shape of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    /// What was looked at.
    pub(crate) name: String,
    /// How it came out.
    pub(crate) verdict: Verdict,
    /// What was found.
    pub(crate) found: String,
    /// What does not work, or not as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<String>,
    /// What to do about it.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
    /// Whether nothing can run because of it.
    pub(crate) fatal: bool,
}

impl Check {
    pub(crate) fn ok(name: &str, found: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            verdict: Verdict::Ok,
            found: found.into(),
            lost: None,
            advice: None,
            fatal: false,
        }
    }

    pub(crate) fn warn(name: &str, found: impl Into<String>, lost: &str, advice: &str) -> Self {
        let (lost, advice) = (Some(lost.to_owned()), Some(advice.to_owned()));
        Self { verdict: Verdict::Warn, lost, advice, ..Self::ok(name, found) }
    }

    pub(crate) fn lost(name: &str, found: impl Into<String>, lost: &str, advice: &str) -> Self {
        Self { verdict: Verdict::Lost, ..Self::warn(name, found, lost, advice) }
    }

    /// A loss with which nothing can run.
    pub(crate) fn fatal(name: &str, found: impl Into<String>, lost: &str, advice: &str) -> Self {
        Self { fatal: true, ..Self::lost(name, found, lost, advice) }
    }
}

#[derive(Serialize)]
struct Findings {
    usable: bool,
    checks: Vec<Check>,
}

pub(crate) fn run(args: &DoctorArgs) -> Outcome {
    let data_dir = args.data_dir.clone().unwrap_or_else(default_data_dir);
    let mut checks = machine::checks(&data_dir);
    checks.extend(ports::checks());
    checks.extend(udp::checks());
    checks.extend(crate::capabilities::checks());
    checks.extend(egress::checks());
    let usable = !checks.iter().any(|check| check.fatal);
    match args.json {
        true => output::print_json(&Findings { usable, checks })?,
        false => output::print(&page(&checks, usable, Style::of(&stdout())))?,
    }
    Ok(if usable { Exit::Ok } else { Exit::Failed })
}

fn page(checks: &[Check], usable: bool, style: Style) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for check in checks {
        let (paint, word) = match check.verdict {
            Verdict::Ok => (Paint::Good, "ok  "),
            Verdict::Warn => (Paint::Doubtful, "warn"),
            Verdict::Lost => (Paint::Bad, "lost"),
        };
        out += &format!("{}  {:<width$}  {}\n", style.paint(paint, word), check.name, check.found);
        let indent = " ".repeat(width + 8);
        out += &check.lost.as_ref().map(|lost| format!("{indent}lost: {lost}\n")).unwrap_or_default();
        out += &check.advice.as_ref().map(|advice| format!("{indent}do:   {advice}\n")).unwrap_or_default();
    }
    let bad = checks.iter().filter(|check| check.verdict != Verdict::Ok).count();
    let end = match (usable, bad) {
        (false, _) => "nothing can run on this machine until this is mended".to_owned(),
        (true, 0) => "everything is there".to_owned(),
        (true, bad) => format!("functions can run; {bad} of {} checks say with what drawback", checks.len()),
    };
    format!("{out}\n{end}\n")
}
