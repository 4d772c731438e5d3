//! `scale`: the number of instances.

use std::time::Duration;

use clap::Args;
use nearpath_types::{FunctionId, FunctionPolicy, FunctionStatus, duration, policy::SCALE_MAX};
use serde_json::json;

use super::progress::{self, WaitItem};
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output;

/// Options of `scale`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct ScaleArgs {
    /// Name the function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Set this number of instances
    pub replicas: u64,
    /// Wait until they are ready
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this
    #[arg(long, default_value = "60s", value_parser = duration::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(super) fn run(args: &ScaleArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    client.scale(&args.name, args.replicas)?;
    let mut exit = ExitStatus::Ok;
    if args.wait {
        let mut items = [WaitItem::new(args.name.clone())];
        progress::wait(&client, &mut items, args.timeout, args.json)?;
        exit = progress::report_outcome(&items[0], args.timeout);
    }
    // Read again after the change: labels may have capped the number.
    let status = client.function(&args.name)?;
    if let Some(reason) = explain_difference(args.replicas, &status) {
        eprintln!("nearpath: warning: {}: {reason}", args.name);
    }
    print_result(args, &status)?;
    Ok(exit)
}

fn print_result(args: &ScaleArgs, status: &FunctionStatus) -> Result<(), CommandError> {
    let (name, namespace) = (args.name.name.as_str(), args.name.namespace.as_str());
    let (wanted, ready) = (status.replicas, status.available_replicas);
    match args.json {
        false => output::print(&format!("{name}: {ready} of {wanted} ready\n")),
        true => output::print_json(
            &json!({ "name": name, "namespace": namespace, "replicas": wanted, "availableReplicas": ready }),
        ),
    }
}

/// Explains why the gateway's number of replicas differs from the requested one.
fn explain_difference(requested: u64, status: &FunctionStatus) -> Option<String> {
    let wanted = status.replicas;
    let max = status
        .spec
        .labels
        .get(SCALE_MAX)
        .and_then(|text| text.trim().parse::<u32>().ok());
    let max = u64::from(max.unwrap_or(FunctionPolicy::default().scale_max).max(1));
    match requested {
        _ if wanted == requested => None,
        _ if requested > max && wanted == max => Some(format!(
            "{requested} replicas were requested, and {SCALE_MAX} allows {max}: scaled to {max}"
        )),
        0 => Some(format!(
            "a call has scaled it up again, to {wanted}: it stays at zero only without calls"
        )),
        _ => Some(format!(
            "{requested} replicas were requested, but another client has set {wanted} since"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explanation(requested: u64, wanted: u64, labels: serde_json::Value) -> String {
        let status = json!({
            "name": "f", "image": "", "namespace": "openfaas-fn", "invocationCount": 0.0, "replicas": wanted,
            "availableReplicas": 0, "createdAt": "", "labels": labels,
        });
        explain_difference(requested, &serde_json::from_value(status).unwrap()).unwrap_or_default()
    }

    #[test]
    fn the_explanation_fits_the_numbers() {
        assert_eq!(explanation(3, 3, json!({})), "");
        assert!(
            explanation(100_000_000, 20, json!({}))
                .contains("com.openfaas.scale.max allows 20: scaled to 20")
        );
        assert!(explanation(9, 4, json!({ SCALE_MAX: "4" })).contains("allows 4: scaled to 4"));
        assert!(explanation(0, 2, json!({})).contains("a call has scaled it up again, to 2"));
        assert!(explanation(9, 2, json!({ SCALE_MAX: "4" })).contains("another client"));
        assert!(explanation(3, 5, json!({})).contains("another client"));
    }
}
