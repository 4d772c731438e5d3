//! `scale`: how many instances run.

use serde_json::json;

use super::progress::{self, Item};
use crate::api::{Client, Target};
use crate::args::ScaleArgs;
use crate::exit::{Exit, Outcome};
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
    let (wanted, ready) = (status.replicas, status.available_replicas);
    let id = &args.name;
    if args.json {
        let namespace = id.namespace.as_str();
        let answer =
            json!({ "name": id.name.as_str(), "namespace": namespace, "replicas": wanted, "availableReplicas": ready });
        output::print_json(&answer)?;
    } else {
        let note = if wanted == args.replicas { "" } else { " (bounded by com.openfaas.scale.max)" };
        output::print(&format!("{}: {ready} of {wanted} ready{note}\n", id.name))?;
    }
    Ok(exit)
}
