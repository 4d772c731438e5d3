//! `describe`: all that is known of one function.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::stdout;

use nearpath_types::{FunctionStatus, Resources, policy};

use super::readiness::Phase;
use crate::api::{Client, Target};
use crate::args::DescribeArgs;
use crate::exit::{Exit, Outcome};
use crate::output::{self, Paint, Style, Table};

pub(super) fn run(args: &DescribeArgs) -> Outcome {
    let client = Client::new(Target::of(&args.connection, None)?);
    let status = client.function(&args.name)?;
    if args.json {
        output::print_json(&status)?;
        return Ok(Exit::Ok);
    }
    let url = super::invoke::url(&client, &args.name);
    output::print(&page(&status, &url, Style::of(&stdout())))?;
    Ok(Exit::Ok)
}

fn page(status: &FunctionStatus, url: &str, style: Style) -> String {
    let spec = &status.spec;
    let phase = Phase::of(status);
    let paint = match phase {
        Phase::Ready { .. } | Phase::Asleep => Paint::Good,
        Phase::Starting { .. } => Paint::Doubtful,
        Phase::Trouble { .. } => Paint::Bad,
    };
    let mut page = Page(String::new());
    page.line("Name", &status.name);
    page.line("Namespace", &spec.namespace);
    page.line("State", &style.paint(paint, &phase.text()));
    page.line("URL", url);
    page.line("Image", &spec.image);
    page.line("Command", &spec.env_process);
    page.line("Created", &status.created_at);
    page.line("Invocations", &format!("{:.0}", status.invocation_count));
    page.line("Calls", spec.annotations.get(policy::CALLS).map(String::as_str).unwrap_or_default());
    page.line("Limits", &resources(spec.limits.as_ref()));
    page.line("Requests", &resources(spec.requests.as_ref()));
    if let Some(usage) = &status.usage {
        page.line("Usage", &format!("cpu {:.0}m, memory {:.1} MiB", usage.cpu, usage.total_memory_bytes / 1_048_576.0));
    }
    page.line("Secrets", &spec.secrets.join(", "));
    page.line("Constraints", &spec.constraints.join(", "));
    page.map("Environment", &spec.env_vars);
    page.map("Labels", &spec.labels);
    page.map("Annotations", &spec.annotations);
    page.0 += &instances(status);
    page.0
}

/// `Key:  value` lines; what is empty is left out.
struct Page(String);

impl Page {
    fn line(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            let _ = writeln!(self.0, "{:<13}{value}", format!("{key}:")); // a String takes every write
        }
    }

    fn map(&mut self, key: &str, map: &BTreeMap<String, String>) {
        for (index, (name, value)) in map.iter().enumerate() {
            let head = if index == 0 { format!("{key}:") } else { String::new() };
            let _ = writeln!(self.0, "{head:<13}{name}={value}"); // a String takes every write
        }
    }
}

fn resources(resources: Option<&Resources>) -> String {
    let Some(resources) = resources else { return String::new() };
    let memory = resources.memory.as_ref().map(|memory| format!("memory {memory}"));
    let cpu = resources.cpu.as_ref().map(|cpu| format!("cpu {cpu}"));
    let pids = resources.pids.map(|pids| format!("pids {pids}"));
    [memory, cpu, pids].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn instances(status: &FunctionStatus) -> String {
    if status.instances.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["INSTANCE", "STATE", "REVISION", "PID", "ADDRESS", "START"]);
    for instance in &status.instances {
        let total: f64 = instance.start_ms.values().sum();
        let phases: Vec<_> = instance.start_ms.iter().map(|(name, ms)| format!("{name} {ms:.1}")).collect();
        let start = if phases.is_empty() { String::new() } else { format!("{total:.1} ms ({})", phases.join(", ")) };
        let (revision, pid) = (instance.revision.to_string(), instance.pid.to_string());
        table.row([instance.id.clone(), instance.state.clone(), revision, pid, instance.addr.clone(), start]);
    }
    format!("\n{}", table.render())
}
