//! `deploy`: sends the specs of a stack file or of options to the gateway, and waits until the
//! functions are ready.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nearpath_stack::{HostContext, StackSpec};
use nearpath_types::{FunctionId, FunctionSpec, duration};
use serde::Serialize;

use super::progress::{self, WaitItem};
use super::readiness::{ReadyPhase, WaitOutcome};
use super::{first_failure, secrets, stack_file};
use crate::api::{ApiClient, DeployOutcome, GatewayTarget};
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::gateway_args::{GatewayArgs, parse_pair};
use crate::output::{self, TextTable};

/// Options of `deploy`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DeployArgs {
    /// Deploy this function from options instead of a stack file
    #[arg(value_name = "NAME", conflicts_with = "file")]
    pub name: Option<FunctionId>,
    /// Read this stack file [default: stack.yml or stack.yaml here]
    #[arg(short, long, visible_alias = "yaml", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Deploy only functions whose name matches; `*` matches anything
    #[arg(long, value_name = "GLOB", conflicts_with = "name")]
    pub filter: Option<String>,
    /// Run this image as NAME
    #[arg(
        long,
        value_name = "REFERENCE",
        requires = "name",
        conflicts_with = "handler"
    )]
    pub image: Option<String>,
    /// Run this folder of this machine as NAME
    #[arg(long, value_name = "DIR", requires = "name")]
    pub handler: Option<PathBuf>,
    /// Run NAME with this command
    #[arg(long, value_name = "COMMAND", requires = "name")]
    pub fprocess: Option<String>,
    /// Set an environment variable of every function deployed
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// Set a label of every function deployed
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub label: Vec<(String, String)>,
    /// Set an annotation of every function deployed
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub annotation: Vec<(String, String)>,
    /// Let every function deployed read this secret
    #[arg(long, value_name = "NAME")]
    pub secret: Vec<String>,
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Options for the wait until functions are ready.
#[derive(Debug, Clone, Args)]
pub struct WaitArgs {
    /// Do not wait until the functions are ready
    #[arg(long, conflicts_with = "wait")]
    pub no_wait: bool,
    /// Wait until they are ready (the default)
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this
    #[arg(long, default_value = "60s", value_parser = duration::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// The result for one function; the shape of `--json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeployRow {
    name: String,
    namespace: String,
    /// Absent if the gateway refused the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<DeployOutcome>,
    /// True if the function became ready; always false with `--no-wait`.
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    url: String,
    #[serde(skip)]
    state: String,
}

pub(super) fn run(args: &DeployArgs) -> CommandResult {
    let stack = load_stack(args)?;
    let client = ApiClient::new(GatewayTarget::from_args(
        &args.gateway,
        stack.gateway.as_deref(),
    )?);
    let mut specs = filter_specs(stack.functions, args.filter.as_deref())?;
    specs.iter_mut().for_each(|spec| apply_options(spec, args));
    specs
        .first()
        .iter()
        .for_each(|spec| warn_ignored_options(spec, args));
    let (mut rows, mut statuses, mut items) = (Vec::new(), Vec::new(), Vec::new());
    for spec in &specs {
        let result = client.deploy(spec);
        if let Err(error) = &result {
            // These two errors would repeat for every other function.
            if matches!(
                error.exit,
                ExitStatus::Unreachable | ExitStatus::Unauthorised
            ) {
                return Err(error.clone());
            }
            eprintln!("nearpath: {error}");
            // A missing secret is a frequent cause; the advice is the command that creates it.
            secrets::advice(&client, spec)
                .iter()
                .for_each(|line| eprintln!("nearpath: {line}"));
            statuses.push(error.exit);
        } else {
            items.push(WaitItem::new(spec.id()));
        }
        rows.push(new_row(&client, spec, result));
    }
    // The wait begins after all specs were sent, so that the functions start in parallel.
    if !args.wait.no_wait {
        progress::wait(&client, &mut items, args.wait.timeout, args.json)?;
        statuses.extend(
            items
                .iter()
                .map(|item| progress::report_outcome(item, args.wait.timeout)),
        );
        items.iter().for_each(|item| update_row(&mut rows, item));
    }
    print_rows(&rows, args.json)?;
    Ok(first_failure(statuses))
}

/// Reads the stack file, or builds a stack with the one function of the options.
fn load_stack(args: &DeployArgs) -> Result<StackSpec, CommandError> {
    match &args.name {
        Some(name) => Ok(StackSpec {
            gateway: None,
            functions: vec![spec_from_options(name, args)?],
        }),
        None => stack_file::read(&stack_file::find(args.file.as_deref())?, &HostContext),
    }
}

fn spec_from_options(name: &FunctionId, args: &DeployArgs) -> Result<FunctionSpec, CommandError> {
    let usage = |text: String| CommandError::new(ExitStatus::Usage, text);
    let mut spec = FunctionSpec::named(name.name.clone());
    spec.namespace = name.namespace.clone();
    spec.env_process = args.fprocess.clone().unwrap_or_default();
    spec.image = match (&args.image, &args.handler) {
        (Some(image), _) => image.clone(),
        (None, Some(folder)) => {
            // The gateway resolves the path and has another working directory.
            let path = folder
                .canonicalize()
                .map_err(|error| usage(format!("--handler {}: {error}", folder.display())))?;
            format!(
                "file://{}",
                path.to_str()
                    .ok_or_else(|| usage("--handler: the path is not UTF-8".to_owned()))?
            )
        }
        (None, None) => {
            return Err(usage(format!(
                "no image for {}: use --image REFERENCE, or --handler DIR with --fprocess COMMAND",
                name.name
            )));
        }
    };
    Ok(spec)
}

fn filter_specs(
    specs: Vec<FunctionSpec>,
    filter: Option<&str>,
) -> Result<Vec<FunctionSpec>, CommandError> {
    let Some(glob) = filter else { return Ok(specs) };
    let matching: Vec<_> = specs
        .into_iter()
        .filter(|spec| matches_glob(glob, spec.service.as_str()))
        .collect();
    match matching.is_empty() {
        true => Err(CommandError::new(
            ExitStatus::NotFound,
            format!("no function of the file matches --filter {glob:?}"),
        )),
        false => Ok(matching),
    }
}

/// Returns whether `glob`, in which `*` matches anything, matches the whole text.
fn matches_glob(glob: &str, text: &str) -> bool {
    let Some((head, tail)) = glob.split_once('*') else {
        return glob == text;
    };
    let Some(mut rest) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts = tail.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            // The last part must be at the end, not at its first occurrence.
            return rest.ends_with(part);
        }
        let Some(found) = rest.find(part) else {
            return false;
        };
        rest = &rest[found + part.len()..];
    }
    true
}

/// Adds the options to a spec. They override the stack file, as in OpenFaaS's `faas-cli`.
fn apply_options(spec: &mut FunctionSpec, args: &DeployArgs) {
    spec.env_vars.extend(args.env.iter().cloned());
    spec.labels.extend(args.label.iter().cloned());
    spec.annotations.extend(args.annotation.iter().cloned());
    // Without duplicates, because the file may already name the secret.
    let new: Vec<_> = args
        .secret
        .iter()
        .filter(|secret| !spec.secrets.contains(secret))
        .cloned()
        .collect();
    spec.secrets.extend(new);
}

/// Warns of options without effect. Those of the stack file were reported with their positions.
fn warn_ignored_options(spec: &FunctionSpec, args: &DeployArgs) {
    let from_options = args.label.iter().chain(&args.annotation);
    for ignored in spec.ignored_settings() {
        if from_options.clone().any(|(key, _)| *key == ignored.key) {
            eprintln!("nearpath: warning: {ignored}");
        }
    }
}

fn new_row(
    client: &ApiClient,
    spec: &FunctionSpec,
    result: Result<DeployOutcome, CommandError>,
) -> DeployRow {
    let (outcome, error) = match result {
        Ok(outcome) => (Some(outcome), None),
        Err(error) => (None, Some(error.text)),
    };
    let state = if outcome.is_some() {
        "accepted"
    } else {
        "refused"
    }
    .to_owned();
    let url = super::invoke::function_url(client, &spec.id());
    DeployRow {
        name: spec.service.to_string(),
        namespace: spec.namespace.to_string(),
        outcome,
        ready: false,
        error,
        url,
        state,
    }
}

fn update_row(rows: &mut [DeployRow], item: &WaitItem) {
    let is_same = |row: &&mut DeployRow| {
        row.name == item.id.name.as_str() && row.namespace == item.id.namespace.as_str()
    };
    let Some(row) = rows.iter_mut().find(is_same) else {
        return;
    };
    // A function scaled to zero counts as ready: its first call starts it.
    row.ready = item.phase.as_ref().is_some_and(ReadyPhase::is_settled);
    if let WaitOutcome::Failed(why) = &item.outcome {
        row.error = Some(why.clone());
    }
    // The reason of a failure is too long for a column; it is printed on standard error.
    let state = |phase: &ReadyPhase| {
        phase
            .to_text()
            .split(": ")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    row.state = item.phase.as_ref().map(state).unwrap_or_default();
}

fn print_rows(rows: &[DeployRow], json: bool) -> Result<(), CommandError> {
    if json {
        return output::print_json(&rows);
    }
    let mut table = TextTable::new(&["NAME", "DEPLOYED", "STATE", "URL"]);
    for row in rows {
        let outcome = match row.outcome {
            Some(DeployOutcome::Created) => "created",
            Some(DeployOutcome::Updated) => "updated",
            None => "no",
        };
        table.add_row([
            row.name.clone(),
            outcome.to_owned(),
            row.state.clone(),
            row.url.clone(),
        ]);
    }
    output::print(&table.render())
}

#[cfg(test)]
mod tests {
    use super::matches_glob;

    #[test]
    fn globs_match() {
        for (glob, text, expected) in [
            ("cart", "cart", true),
            ("cart", "carts", false),
            ("*", "x", true),
            ("*gif*", "a-gif-b", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("*-api", "shop-api", true),
        ] {
            assert_eq!(matches_glob(glob, text), expected, "{glob} {text}");
        }
    }
}
