//! Settings that the peers of a chain receive: callees with their aliases, and topics.

use crate::name::{FunctionId, Namespace};

use super::{EdgeBalance, parse_topics};

/// Maximum bytes of a function's aliases, and of its topics: the node sends them to peers in one
/// packet.
const MAX_ANNOUNCED_BYTES: usize = 1024;

/// Key of the setting of an edge.
const BALANCE: &str = "balance";

/// Edges that start at a function.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DeclaredCalls {
    pub(super) callees: Vec<FunctionId>,
    /// Aliases of callees, each with the function that it stands for.
    pub(super) aliases: Vec<(FunctionId, FunctionId)>,
    /// Callees with the setting `balance=connection`.
    pub(super) connection_balanced: Vec<FunctionId>,
}

pub(super) fn parse_calls(
    list: &str,
    default_namespace: &Namespace,
) -> Result<DeclaredCalls, String> {
    let mut declared = DeclaredCalls::default();
    let mut balances = Vec::new();
    for item in list
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        // Before the alias: settings have equals signs, too.
        let (item, settings) = split_edge_settings(item);
        let (alias, name) = item.split_once('=').map_or((None, item), |(alias, name)| {
            (Some(alias.trim()), name.trim())
        });
        // A name without a namespace is one of the caller's namespace.
        let callee = parse_function(name, default_namespace).map_err(|error| error.to_string())?;
        if let Some(alias) = alias {
            let name = alias
                .parse()
                .map_err(|error: crate::InvalidName| error.to_string())?;
            let namespace = default_namespace.clone();
            let alias = FunctionId { name, namespace };
            declared.aliases.push((alias, callee.clone()));
        }
        let balance =
            parse_edge_settings(settings).map_err(|error| format!("`{name}`: {error}"))?;
        if let Some(balance) = balance {
            balances.push((callee.clone(), balance));
        }
        // Two aliases of one function are a single edge.
        if !declared.callees.contains(&callee) {
            declared.callees.push(callee);
        }
    }
    check_aliases(&declared.callees, &declared.aliases)?;
    declared.connection_balanced = balanced_per_connection(&balances)?;
    Ok(declared)
}

/// Splits `ALIAS=NAME SETTINGS` before the settings. Blanks around the first `=` belong to the name.
pub fn split_edge_settings(item: &str) -> (&str, &str) {
    let is_end = |at: usize| {
        let (before, after) = (item[..at].trim_end(), item[at..].trim_start());
        !before.ends_with('=') && !after.starts_with('=')
    };
    let blanks = item.char_indices().filter(|(_, one)| one.is_whitespace());
    // Lists written by hand may have blanks around the sign of an alias.
    let end = blanks.map(|(at, _)| at).find(|at| is_end(*at));
    end.map_or((item, ""), |at| item.split_at(at))
}

/// Parses the settings of an edge, with blanks between them; `None` without any.
///
/// # Errors
/// Names the setting or value that is not known, or that is there twice.
pub fn parse_edge_settings(settings: &str) -> Result<Option<EdgeBalance>, String> {
    let mut balance = None;
    for setting in settings.split_whitespace() {
        match setting.split_once('=') {
            Some((BALANCE, _)) if balance.is_some() => {
                return Err(format!("an edge has `{BALANCE}` once"));
            }
            Some((BALANCE, value)) => balance = Some(value.parse()?),
            _ => {
                return Err(format!(
                    "unknown setting `{setting}`: an edge has `{BALANCE}=connection` or `{BALANCE}=request`"
                ));
            }
        }
    }
    Ok(balance)
}

/// Returns the callees whose connections are balanced. Several items may name one callee.
fn balanced_per_connection(
    balances: &[(FunctionId, EdgeBalance)],
) -> Result<Vec<FunctionId>, String> {
    let mut balanced = Vec::new();
    for (at, (callee, balance)) in balances.iter().enumerate() {
        let earlier = balances[..at].iter().find(|(other, _)| other == callee);
        match earlier {
            Some((_, other)) if other != balance => {
                return Err(format!(
                    "`{}` has both `{BALANCE}={other}` and `{BALANCE}={balance}`",
                    callee.name
                ));
            }
            None if *balance == EdgeBalance::Connection => balanced.push(callee.clone()),
            _ => {}
        }
    }
    Ok(balanced)
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
