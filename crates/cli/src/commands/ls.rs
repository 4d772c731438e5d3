//! `ls`: the functions of a namespace.

use clap::Args;
use nearpath_types::{FunctionStatus, Namespace};

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
    let mut functions = client.functions(args.namespace.as_ref())?;
    // The gateway's order is not promised, and scripts compare outputs.
    functions.sort_by(|a, b| (&a.spec.namespace, &a.name).cmp(&(&b.spec.namespace, &b.name)));
    match args.json {
        true => output::print_json(&functions)?,
        false => output::print(&function_table(&functions).render())?,
    }
    Ok(ExitStatus::Ok)
}

fn function_table(functions: &[FunctionStatus]) -> TextTable {
    let mut table = TextTable::new(&["NAME", "READY", "INVOCATIONS", "IMAGE"]).align_right(2);
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
        table.add_row([
            function.name.clone(),
            ready,
            format!("{:.0}", function.invocation_count),
            image,
        ]);
    }
    table
}
