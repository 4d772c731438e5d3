//! What peers within a chain are told of a function: whom it calls, by which names, and its topics.

use crate::name::{FunctionId, Namespace};

use super::topics;

/// Most bytes of a function's aliases, and of its topics: the node tells peers of them in one packet.
const MOST_TOLD: usize = 1024;

/// The callees, and the aliases among them.
pub(super) type Calls = (Vec<FunctionId>, Vec<(FunctionId, FunctionId)>);

pub(super) fn calls(list: &str, home: &Namespace) -> Result<Calls, String> {
    let (mut callees, mut aliases) = (Vec::new(), Vec::new());
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (alias, name) =
            item.split_once('=').map_or((None, item), |(alias, name)| (Some(alias.trim()), name.trim()));
        let callee = function(name, home).map_err(|error| error.to_string())?;
        if let Some(alias) = alias {
            let name = alias.parse().map_err(|error: crate::InvalidName| error.to_string())?;
            aliases.push((FunctionId { name, namespace: home.clone() }, callee.clone()));
        }
        if !callees.contains(&callee) {
            callees.push(callee);
        }
    }
    check_aliases(&callees, &aliases)?;
    Ok((callees, aliases))
}

fn function(name: &str, home: &Namespace) -> Result<FunctionId, crate::InvalidName> {
    match name.contains('.') {
        true => name.parse(),
        false => Ok(FunctionId { name: name.parse()?, namespace: home.clone() }),
    }
}

/// A name means one function.
fn check_aliases(callees: &[FunctionId], aliases: &[(FunctionId, FunctionId)]) -> Result<(), String> {
    for (at, (alias, callee)) in aliases.iter().enumerate() {
        if callees.contains(alias) && alias != callee {
            return Err(format!("`{}={}`: {} is called by its own name too", alias.name, callee.name, alias.name));
        }
        if aliases[..at].iter().any(|(other, meant)| other == alias && meant != callee) {
            return Err(format!("`{}` stands for two functions", alias.name));
        }
    }
    let told: usize = aliases.iter().map(|(alias, _)| alias.to_string().len() + 3).sum();
    if told > MOST_TOLD { Err(format!("the aliases have {told} bytes, {MOST_TOLD} are allowed")) } else { Ok(()) }
}

pub(super) fn told_topics(list: &str) -> Result<Vec<String>, String> {
    match list.len() > MOST_TOLD {
        true => Err(format!("the topics have {} bytes, {MOST_TOLD} are allowed", list.len())),
        false => topics(list).map_err(|error| error.to_string()),
    }
}
