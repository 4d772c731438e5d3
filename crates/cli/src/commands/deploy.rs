//! `deploy`: specs from a stack file or from options, each put to the gateway, then waited for.

use nearpath_stack::{Stack, ThisMachine};
use nearpath_types::{FunctionId, FunctionSpec};
use serde::Serialize;

use super::progress::{self, Item};
use super::readiness::{Phase, Verdict};
use super::{secrets, stack_file, worst};
use crate::api::{Client, Deployed, Target};
use crate::args::DeployArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, Table};

/// What happened to one function; the shape of `--json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    namespace: String,
    /// `created`, `updated` or, when the gateway refused it, absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Deployed>,
    /// Whether it was seen ready; always false with `--no-wait`.
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    url: String,
    #[serde(skip)]
    state: String,
}

pub(super) fn run(args: &DeployArgs) -> Outcome {
    let stack = stack(args)?;
    let client = Client::new(Target::of(&args.connection, stack.gateway.as_deref())?);
    let mut specs = selected(stack.functions, args.filter.as_deref())?;
    specs.iter_mut().for_each(|spec| add_options(spec, args));
    let (mut rows, mut exits, mut items) = (Vec::new(), Vec::new(), Vec::new());
    for spec in &specs {
        let sent = client.deploy(spec);
        if let Err(failure) = &sent {
            if matches!(failure.exit, Exit::Unreachable | Exit::Unauthorised) {
                return Err(failure.clone());
            }
            eprintln!("nearpath: {failure}");
            secrets::advice(&client, spec).iter().for_each(|line| eprintln!("nearpath: {line}"));
            exits.push(failure.exit);
        } else {
            items.push(Item::new(spec.id()));
        }
        rows.push(row(&client, spec, sent));
    }
    if !args.waiting.no_wait {
        progress::wait(&client, &mut items, args.waiting.timeout, args.json)?;
        exits.extend(items.iter().map(|item| progress::settle(item, args.waiting.timeout)));
        items.iter().for_each(|item| note(&mut rows, item));
    }
    show(&rows, args.json)?;
    Ok(worst(exits))
}

/// What is asked for: a file, or one function by its options.
fn stack(args: &DeployArgs) -> Result<Stack, Failure> {
    match &args.name {
        Some(name) => Ok(Stack { gateway: None, functions: vec![direct(name, args)?] }),
        None => stack_file::read(&stack_file::find(args.file.as_deref())?, &ThisMachine),
    }
}

fn direct(name: &FunctionId, args: &DeployArgs) -> Result<FunctionSpec, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let mut spec = FunctionSpec::named(name.name.clone());
    spec.namespace = name.namespace.clone();
    spec.env_process = args.fprocess.clone().unwrap_or_default();
    spec.image = match (&args.image, &args.handler) {
        (Some(image), _) => image.clone(),
        (None, Some(folder)) => {
            let path =
                folder.canonicalize().map_err(|error| usage(format!("--handler {}: {error}", folder.display())))?;
            format!("file://{}", path.to_str().ok_or_else(|| usage("--handler: the path is not UTF-8".to_owned()))?)
        }
        (None, None) => {
            return Err(usage(format!(
                "say what {} runs: --image REFERENCE, or --handler DIR --fprocess COMMAND",
                name.name
            )));
        }
    };
    Ok(spec)
}

fn selected(specs: Vec<FunctionSpec>, filter: Option<&str>) -> Result<Vec<FunctionSpec>, Failure> {
    let Some(glob) = filter else { return Ok(specs) };
    let kept: Vec<_> = specs.into_iter().filter(|spec| matches(glob, spec.service.as_str())).collect();
    match kept.is_empty() {
        true => Err(Failure::new(Exit::NotFound, format!("no function of the file matches --filter {glob:?}"))),
        false => Ok(kept),
    }
}

/// Whether `glob`, in which `*` stands for anything, matches the whole of `text`.
fn matches(glob: &str, text: &str) -> bool {
    let Some((head, tail)) = glob.split_once('*') else { return glob == text };
    let Some(mut rest) = text.strip_prefix(head) else { return false };
    let mut parts = tail.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    true
}

/// Options win over the file, as with OpenFaaS's client.
fn add_options(spec: &mut FunctionSpec, args: &DeployArgs) {
    spec.env_vars.extend(args.env.iter().cloned());
    spec.labels.extend(args.label.iter().cloned());
    spec.annotations.extend(args.annotation.iter().cloned());
    let new: Vec<_> = args.secret.iter().filter(|secret| !spec.secrets.contains(secret)).cloned().collect();
    spec.secrets.extend(new);
}

fn row(client: &Client, spec: &FunctionSpec, sent: Result<Deployed, Failure>) -> Row {
    let (outcome, error) = match sent {
        Ok(outcome) => (Some(outcome), None),
        Err(failure) => (None, Some(failure.text)),
    };
    let state = if outcome.is_some() { "accepted" } else { "refused" }.to_owned();
    let url = super::invoke::url(client, &spec.id());
    Row {
        name: spec.service.to_string(),
        namespace: spec.namespace.to_string(),
        outcome,
        ready: false,
        error,
        url,
        state,
    }
}

fn note(rows: &mut [Row], item: &Item) {
    let mine = |row: &&mut Row| row.name == item.id.name.as_str() && row.namespace == item.id.namespace.as_str();
    let Some(row) = rows.iter_mut().find(mine) else { return };
    row.ready = item.phase.as_ref().is_some_and(Phase::is_settled);
    if let Verdict::Failed(why) = &item.verdict {
        row.error = Some(why.clone());
    }
    let state = |phase: &Phase| phase.text().split(": ").next().unwrap_or_default().to_owned();
    row.state = item.phase.as_ref().map(state).unwrap_or_default();
}

fn show(rows: &[Row], json: bool) -> Result<(), Failure> {
    if json {
        return output::print_json(&rows);
    }
    let mut table = Table::new(&["NAME", "DEPLOYED", "STATE", "URL"]);
    for row in rows {
        let outcome = match row.outcome {
            Some(Deployed::Created) => "created",
            Some(Deployed::Updated) => "updated",
            None => "no",
        };
        table.row([row.name.clone(), outcome.to_owned(), row.state.clone(), row.url.clone()]);
    }
    output::print(&table.render())
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn globs() {
        for (glob, text, wanted) in [
            ("cart", "cart", true),
            ("cart", "carts", false),
            ("*", "x", true),
            ("*gif*", "a-gif-b", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("*-api", "shop-api", true),
        ] {
            assert_eq!(matches(glob, text), wanted, "{glob} {text}");
        }
    }
}
