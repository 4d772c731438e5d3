//! `describe`: configuration, state and instances of one function.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::stdout;

use clap::Args;
use nearpath_types::{AutoscalingStatus, FunctionId, FunctionStatus, InstanceResources, policy};

use super::missing_nodes::warn_missing;
use super::readiness::ReadyPhase;
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output::{self, TextStyle, TextTable};

/// Options of `describe`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DescribeArgs {
    /// Name the function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Print JSON: OpenFaaS's FunctionStatus
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(super) fn run(args: &DescribeArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let status = client.function(&args.name)?;
    warn_missing(&status.missing_nodes);
    if args.json {
        output::print_json(&status)?;
        return Ok(ExitStatus::Ok);
    }
    let url = super::invoke::function_url(&client, &args.name);
    output::print(&format_page(
        &status,
        &url,
        TextStyle::for_stream(&stdout()),
    ))?;
    Ok(ExitStatus::Ok)
}

fn format_page(status: &FunctionStatus, url: &str, style: TextStyle) -> String {
    let spec = &status.spec;
    let phase = ReadyPhase::from_status(status);
    let mut page = KeyValuePage(String::new());
    page.add_line("Name", &status.name);
    page.add_line("Namespace", &spec.namespace);
    page.add_line("State", &style.paint(phase.color(), &phase.to_text()));
    page.add_line(
        "Last failure",
        status.last_failure.as_deref().unwrap_or_default(),
    );
    page.add_line("URL", url);
    let address = status.virtual_address.map(|address| address.to_string());
    page.add_line("Address", &address.unwrap_or_default());
    page.add_line("Autoscaling", &format_autoscaling(status));
    page.add_line("Image", &spec.image);
    page.add_line("Command", &spec.env_process);
    page.add_line("Created", &status.created_at);
    page.add_line("Invocations", &format!("{:.0}", status.invocation_count));
    page.add_line(
        "Calls",
        spec.annotations
            .get(policy::CALLS)
            .map(String::as_str)
            .unwrap_or_default(),
    );
    page.add_line("Limits", &format_resources(spec.limits.as_ref()));
    page.add_line("Requests", &format_resources(spec.requests.as_ref()));
    if let Some(usage) = &status.usage {
        page.add_line(
            "Usage",
            &format!(
                "cpu {:.0}m, memory {:.1} MiB",
                usage.cpu,
                usage.total_memory_bytes / 1_048_576.0
            ),
        );
    }
    page.add_line("Secrets", &spec.secrets.join(", "));
    page.add_line("Constraints", &spec.constraints.join(", "));
    page.add_map("Environment", &spec.env_vars);
    page.add_map("Labels", &spec.labels);
    page.add_map("Annotations", &spec.annotations);
    page.0 += &node_table(status);
    page.0 += &instance_table(status);
    page.0
}

/// Replicas of an autoscaled function with their reason, and its settings.
fn format_autoscaling(status: &FunctionStatus) -> String {
    let Some(scaling) = &status.autoscaling else {
        return String::new();
    };
    let AutoscalingStatus {
        replicas,
        reason,
        metric,
        target,
        min,
        max,
    } = scaling;
    format!("wants {replicas}: {reason} ({metric}, {target} per replica, {min} to {max})")
}

/// The function on each node, where there are several.
fn node_table(status: &FunctionStatus) -> String {
    if status.nodes.is_empty() {
        return String::new();
    }
    let headings = ["NODE", "READY", "INVOCATIONS", "REVISION", "REASON"];
    let mut table = TextTable::new(&headings).align_right(2).align_right(3);
    for node in &status.nodes {
        table.add_row([
            node.node.clone(),
            format!("{}/{}", node.available_replicas, node.replicas),
            format!("{:.0}", node.invocation_count),
            node.revision.to_string(),
            node.not_ready_reason.clone().unwrap_or_default(),
        ]);
    }
    for missing in &status.missing_nodes {
        let unknown = || "?".to_owned();
        let reason = format!("no answer: {}", missing.cause);
        table.add_row([
            missing.node.clone(),
            unknown(),
            unknown(),
            unknown(),
            reason,
        ]);
    }
    format!("\n{}", table.render())
}

/// `Key:  value` lines; empty values are left out.
struct KeyValuePage(String);

impl KeyValuePage {
    fn add_line(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            // A String takes every write.
            let _ = writeln!(self.0, "{:<13}{value}", format!("{key}:"));
        }
    }

    fn add_map(&mut self, key: &str, map: &BTreeMap<String, String>) {
        for (index, (name, value)) in map.iter().enumerate() {
            let head = if index == 0 {
                format!("{key}:")
            } else {
                String::new()
            };
            let _ = writeln!(self.0, "{head:<13}{name}={value}"); // a String takes every write
        }
    }
}

fn format_resources(resources: Option<&InstanceResources>) -> String {
    let Some(resources) = resources else {
        return String::new();
    };
    let memory = resources
        .memory
        .as_ref()
        .map(|memory| format!("memory {memory}"));
    let cpu = resources.cpu.as_ref().map(|cpu| format!("cpu {cpu}"));
    let pids = resources.pids.map(|pids| format!("pids {pids}"));
    [memory, cpu, pids]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

fn instance_table(status: &FunctionStatus) -> String {
    if status.instances.is_empty() {
        return String::new();
    }
    let mut table = TextTable::new(&["INSTANCE", "STATE", "REVISION", "PID", "ADDRESS", "START"]);
    for instance in &status.instances {
        let phases: Vec<_> = instance
            .start_ms
            .iter()
            .map(|(name, ms)| format!("{name} {ms:.1}"))
            .collect();
        let start = match instance.ready_ms {
            Some(took) => format!("{took:.1} ms ({})", phases.join(", ")),
            None => phases.join(", "),
        };
        let (revision, pid) = (instance.revision.to_string(), instance.pid.to_string());
        table.add_row([
            instance.id.clone(),
            instance.state.clone(),
            revision,
            pid,
            instance.addr.clone(),
            start,
        ]);
    }
    format!("\n{}", table.render())
}
