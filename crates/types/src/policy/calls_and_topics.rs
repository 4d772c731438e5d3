//! Settings that the peers of a chain receive: callees with their aliases, and topics.

use crate::name::{FunctionId, Namespace};

use super::parse_topics;

/// Maximum bytes of a function's aliases, and of its topics: the node sends them to peers in one
/// packet.
const MAX_ANNOUNCED_BYTES: usize = 1024;

/// Callees, and the aliases among them.
pub(super) type CallsAndAliases = (Vec<FunctionId>, Vec<(FunctionId, FunctionId)>);

pub(super) fn parse_calls(
    list: &str,
    default_namespace: &Namespace,
) -> Result<CallsAndAliases, String> {
    let (mut callees, mut aliases) = (Vec::new(), Vec::new());
    for item in list
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let (alias, name) = item.split_once('=').map_or((None, item), |(alias, name)| {
            (Some(alias.trim()), name.trim())
        });
        // A name without a namespace is one of the caller's namespace.
        let callee = parse_function(name, default_namespace).map_err(|error| error.to_string())?;
        if let Some(alias) = alias {
            let name = alias
                .parse()
                .map_err(|error: crate::InvalidName| error.to_string())?;
            aliases.push((
                FunctionId {
                    name,
                    namespace: default_namespace.clone(),
                },
                callee.clone(),
            ));
        }
        // Two aliases of one function are a single edge.
        if !callees.contains(&callee) {
            callees.push(callee);
        }
    }
    check_aliases(&callees, &aliases)?;
    Ok((callees, aliases))
}

fn parse_function(
    name: &str,
    default_namespace: &Namespace,
) -> Result<FunctionId, crate::InvalidName> {
    match name.contains('.') {
        true => name.parse(),
        false => Ok(FunctionId {
            name: name.parse()?,
            namespace: default_namespace.clone(),
        }),
    }
}

/// Checks that every name means one function.
fn check_aliases(
    callees: &[FunctionId],
    aliases: &[(FunctionId, FunctionId)],
) -> Result<(), String> {
    for (at, (alias, callee)) in aliases.iter().enumerate() {
        // Otherwise calls by that name could mean either function.
        if callees.contains(alias) && alias != callee {
            return Err(format!(
                "`{}={}`: {} is called by its own name too",
                alias.name, callee.name, alias.name
            ));
        }
        if aliases[..at]
            .iter()
            .any(|(other, meant)| other == alias && meant != callee)
        {
            return Err(format!("`{}` stands for two functions", alias.name));
        }
    }
    let bytes: usize = aliases
        .iter()
        .map(|(alias, _)| alias.to_string().len() + 3)
        .sum();
    if bytes > MAX_ANNOUNCED_BYTES {
        Err(format!(
            "the aliases have {bytes} bytes, {MAX_ANNOUNCED_BYTES} are allowed"
        ))
    } else {
        Ok(())
    }
}

pub(super) fn parse_chain_topics(list: &str) -> Result<Vec<String>, String> {
    // The text is at least as long as the filters in it, so it is the simpler bound.
    match list.len() > MAX_ANNOUNCED_BYTES {
        true => Err(format!(
            "the topics have {} bytes, {MAX_ANNOUNCED_BYTES} are allowed",
            list.len()
        )),
        false => parse_topics(list).map_err(|error| error.to_string()),
    }
}
