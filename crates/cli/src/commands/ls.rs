//! `ls`: the functions of a namespace.

use nearpath_types::FunctionStatus;

use crate::api::{Client, Target};
use crate::args::LsArgs;
use crate::exit::{Exit, Outcome};
use crate::output::{self, Table};

pub(super) fn run(args: &LsArgs) -> Outcome {
    let client = Client::new(Target::of(&args.connection, None)?);
    let mut functions = client.functions(args.namespace.as_ref())?;
    functions.sort_by(|a, b| (&a.spec.namespace, &a.name).cmp(&(&b.spec.namespace, &b.name)));
    match args.json {
        true => output::print_json(&functions)?,
        false => output::print(&table(&functions).render())?,
    }
    Ok(Exit::Ok)
}

fn table(functions: &[FunctionStatus]) -> Table {
    let mut table = Table::new(&["NAME", "READY", "INVOCATIONS", "IMAGE"]).right(2);
    for function in functions {
        let ready = match (function.available_replicas, function.replicas) {
            (_, 0) => "asleep".to_owned(),
            (ready, wanted) => format!("{ready}/{wanted}{}", if function.trouble.is_some() { " trouble" } else { "" }),
        };
        let image = function.spec.image.clone();
        table.row([function.name.clone(), ready, format!("{:.0}", function.invocation_count), image]);
    }
    table
}
