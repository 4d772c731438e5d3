//! `ls`: the functions of a namespace.

use clap::Args;
use nearpath_types::{FunctionStatus, Namespace, NodeFunction};

use super::missing_nodes::warn_missing;
use crate::api::{ApiClient, GatewayTarget};
use crate::exit::{CommandResult, ExitStatus};
use crate::gateway_args::GatewayArgs;
use crate::output::{self, TextTable};

/// Options of `ls`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct LsArgs {
    /// List this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<Namespace>,
    /// Print JSON: a list of OpenFaaS's FunctionStatus
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(super) fn run(args: &LsArgs) -> CommandResult {
    let client = ApiClient::new(GatewayTarget::from_args(&args.gateway, None)?);
    let (mut functions, missing) = client.functions(args.namespace.as_ref())?;
    // The gateway's order is not promised, and scripts compare outputs.
    functions.sort_by(|a, b| (&a.spec.namespace, &a.name).cmp(&(&b.spec.namespace, &b.name)));
    match args.json {
        true => output::print_json(&functions)?,
        false => output::print(&function_table(&functions).render())?,
    }
    warn_missing(&missing);
    Ok(ExitStatus::Ok)
}

fn function_table(functions: &[FunctionStatus]) -> TextTable {
    let has_nodes = functions.iter().any(|function| !function.nodes.is_empty());
    let (headings, nodes) = (["NAME", "READY", "INVOCATIONS", "IMAGE"], ["NODES"]);
    let headings: Vec<_> = match has_nodes {
        true => headings.into_iter().chain(nodes).collect(),
        false => headings.into(),
    };
    let mut table = TextTable::new(&headings).align_right(2);
    for function in functions {
        let ready = match (function.available_replicas, function.replicas) {
            (_, 0) => "scaled to zero".to_owned(),
            (ready, wanted) => format!(
                "{ready}/{wanted}{}",
                if function.not_ready_reason.is_some() {
                    " failing"
                } else {
                    ""
                }
            ),
        };
        let image = function.spec.image.clone();
        let cells = [
            function.name.clone(),
            ready,
            format!("{:.0}", function.invocation_count),
            image,
        ];
        let nodes = has_nodes.then(|| node_counts(function));
        table.add_row(cells.into_iter().chain(nodes));
    }
    table
}

/// Ready instances of those wanted by node; `?` for a node that did not answer.
fn node_counts(function: &FunctionStatus) -> String {
    let runs = |one: &&NodeFunction| one.replicas > 0 || one.available_replicas > 0;
    let counts = function.nodes.iter().filter(runs).map(|one| {
        let (ready, wanted) = (one.available_replicas, one.replicas);
        format!("{} {ready}/{wanted}", one.node)
    });
    let missing = function.missing_nodes.iter();
    let missing = missing.map(|one| format!("{} ?", one.node));
    counts.chain(missing).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::MissingNode;
    use serde_json::json;

    fn function(name: &str) -> FunctionStatus {
        serde_json::from_value(json!({
            "name": name, "image": "x", "namespace": "openfaas-fn", "invocationCount": 3.0,
            "replicas": 2, "availableReplicas": 1, "createdAt": "",
        }))
        .unwrap()
    }

    #[test]
    fn one_node_has_no_column_of_nodes() {
        let text = function_table(&[function("cart")]).render();
        assert_eq!(
            text,
            "NAME  READY  INVOCATIONS  IMAGE\ncart  1/2              3  x\n"
        );
    }

    #[test]
    fn several_nodes_show_their_shares() {
        let share = |node: &str, replicas, available_replicas| NodeFunction {
            node: node.to_owned(),
            replicas,
            available_replicas,
            ..NodeFunction::default()
        };
        let mut cart = function("cart");
        cart.nodes = vec![share("a", 1, 1), share("b", 0, 0)];
        cart.missing_nodes = vec![MissingNode::new("c", "no answer within 2s")];
        let text = function_table(&[cart]).render();
        assert!(text.ends_with("x      a 1/1, c ?\n"), "{text}");
    }
}
