//! `scale`: how many instances run.

use nearpath_types::{FunctionStatus, Policy, policy::SCALE_MAX};
use serde_json::json;

use super::progress::{self, Item};
use crate::api::{Client, Target};
use crate::args::ScaleArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

pub(super) fn run(args: &ScaleArgs) -> Outcome {
    let client = Client::new(Target::of(&args.connection, None)?);
    client.scale(&args.name, args.replicas)?;
    let mut exit = Exit::Ok;
    if args.wait {
        let mut items = [Item::new(args.name.clone())];
        progress::wait(&client, &mut items, args.timeout, args.json)?;
        exit = progress::settle(&items[0], args.timeout);
    }
    let status = client.function(&args.name)?;
    if let Some(why) = difference(args.replicas, &status) {
        eprintln!("nearpath: warning: {}: {why}", args.name);
    }
    show(args, &status)?;
    Ok(exit)
}

fn show(args: &ScaleArgs, status: &FunctionStatus) -> Result<(), Failure> {
    let (name, namespace) = (args.name.name.as_str(), args.name.namespace.as_str());
    let (wanted, ready) = (status.replicas, status.available_replicas);
    match args.json {
        false => output::print(&format!("{name}: {ready} of {wanted} ready\n")),
        true => output::print_json(
            &json!({ "name": name, "namespace": namespace, "replicas": wanted, "availableReplicas": ready }),
        ),
    }
}

/// Why another number is wanted than was asked for.
fn difference(asked: u64, status: &FunctionStatus) -> Option<String> {
    let wanted = status.replicas;
    let most = status.spec.labels.get(SCALE_MAX).and_then(|text| text.trim().parse::<u32>().ok());
    let most = u64::from(most.unwrap_or(Policy::default().scale_max).max(1));
    match asked {
        _ if wanted == asked => None,
        _ if asked > most && wanted == most => {
            Some(format!("{asked} replicas were asked for, and {SCALE_MAX} allows {most}: scaled to {most}"))
        }
        0 => Some(format!("a call has woken it again, to {wanted}: it sleeps only while nobody calls it")),
        _ => Some(format!(
            "{asked} replicas were asked for, but {wanted} are wanted now: somebody else changed it since"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(asked: u64, wanted: u64, labels: serde_json::Value) -> String {
        let status = json!({
            "name": "f", "image": "", "namespace": "openfaas-fn", "invocationCount": 0.0, "replicas": wanted,
            "availableReplicas": 0, "createdAt": "", "labels": labels,
        });
        difference(asked, &serde_json::from_value(status).unwrap()).unwrap_or_default()
    }

    #[test]
    fn the_reason_fits_the_numbers() {
        assert_eq!(told(3, 3, json!({})), "");
        assert!(told(100_000_000, 20, json!({})).contains("com.openfaas.scale.max allows 20: scaled to 20"));
        assert!(told(9, 4, json!({ SCALE_MAX: "4" })).contains("allows 4: scaled to 4"));
        assert!(told(0, 2, json!({})).contains("a call has woken it again, to 2"));
        assert!(told(9, 2, json!({ SCALE_MAX: "4" })).contains("somebody else"));
        assert!(told(3, 5, json!({})).contains("somebody else"));
    }
}
