//! Node: `sdk/node/lib`.

use super::banner;
use super::contract::PathContract;
use super::names::upper;

pub(super) fn paths(contract: &PathContract) -> String {
    format!(
        r#"'use strict';
// {banner}

/** Paths of calls. */
const Path = Object.freeze({{
{paths}}});

/** Names of the obstacles to a nearer path. */
const Obstacle = Object.freeze({{
{obstacles}}});

module.exports = {{ Path, Obstacle }};
"#,
        banner = banner("paths.toml"),
        paths = members(contract.paths.iter().map(|row| (&*row.name, &*row.text))),
        obstacles = members(
            contract
                .call_obstacles()
                .iter()
                .map(|row| (&*row.name, &*row.text))
        ),
    )
}

pub(super) fn declarations(contract: &PathContract) -> String {
    let names: Vec<_> = contract
        .paths
        .iter()
        .map(|row| format!("'{}'", row.name))
        .collect();
    format!(
        "// {banner}\n\n/** The path of a call. */\nexport type Path = {names};\n",
        banner = banner("paths.toml"),
        names = names.join(" | ")
    )
}

fn members<'a>(rows: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    rows.map(|(name, text)| format!("  /** {text} */\n  {}: '{name}',\n", upper(name)))
        .collect()
}
