//! Rust: `crates/path` and `crates/types`.

use super::banner;
use super::contract::{ObstacleRow, PathContract, PathRow, ReasonContract, Traffic};
use super::names::camel;

/// Each kind of traffic, with the type of its facts.
const TRAFFIC: [(Traffic, &str); 3] = [
    (Traffic::Call, "CallFacts"),
    (Traffic::Link, "LinkFacts"),
    (Traffic::Egress, "EgressFacts"),
];

pub(super) fn paths(contract: &PathContract) -> String {
    let most = TRAFFIC
        .iter()
        .map(|(traffic, _)| contract.candidates(*traffic).len())
        .max()
        .unwrap_or(0);
    format!(
        r#"// {banner}
//! The lists of `contract/paths.toml`.

use std::ffi::CStr;

{path}
{obstacle}
/// Maximum number of paths of one kind of traffic.
pub(crate) const MAX_CANDIDATES: usize = {most};
"#,
        banner = banner("paths.toml"),
        path = path_enum(&contract.paths),
        obstacle = obstacle_enum(&contract.obstacles),
    )
}

/// The candidates of each kind of traffic, with the functions of their modules.
///
/// A file of its own: the modules use the lists, and nothing that they use may use them.
pub(super) fn candidate_lists(contract: &PathContract) -> String {
    format!(
        r#"// {banner}
//! The paths of each kind of traffic, nearest first.

use crate::facts::{{{facts}}};
use crate::generated::Path;
use crate::paths::{{{modules}}};
use crate::{{Candidate, Facts}};
{candidates}"#,
        banner = banner("paths.toml"),
        facts = TRAFFIC.map(|(_, facts)| facts).join(", "),
        modules = modules(contract).join(", "),
        candidates = TRAFFIC
            .map(|(traffic, facts)| candidates(&contract.candidates(traffic), facts))
            .concat(),
    )
}

/// The module of each path that can be selected: a new row asks for its file.
pub(super) fn path_modules(contract: &PathContract) -> String {
    let lines = modules(contract)
        .into_iter()
        .map(|name| format!("pub(crate) mod {name};\n"));
    format!(
        "// {banner}\n//! The module of each path, with the function that returns its obstacle.\n\n{lines}",
        banner = banner("paths.toml"),
        lines = lines.collect::<String>(),
    )
}

fn modules(contract: &PathContract) -> Vec<&str> {
    let mut modules: Vec<_> = contract
        .paths
        .iter()
        .filter(|row| !row.planned)
        .map(|row| row.name.as_str())
        .collect();
    modules.sort_unstable();
    modules
}

pub(super) fn reasons(contract: &ReasonContract) -> String {
    let rows = || contract.0.iter().map(|(name, row)| (name.as_str(), row));
    let variant = |(name, row): (&str, &super::contract::ReasonRow)| {
        format!(
            "    /// {}\n    {} = {},\n",
            row.text,
            camel(name),
            row.number
        )
    };
    format!(
        r#"// {banner}
//! The list of `contract/reasons.toml`.

use serde::{{Deserialize, Serialize}};

/// Cause of a platform error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Reason {{
{variants}}}

impl Reason {{
    /// Every reason, by number.
    pub const ALL: &'static [Self] = &[
{all}    ];

    /// Returns the name in metrics, logs and the `X-Nearpath-Reason` header.
{name}
    /// Returns the HTTP status of the response.
{status}
    /// Returns whether a retry cannot run the request twice.
{retry}}}
"#,
        banner = banner("reasons.toml"),
        variants = rows().map(variant).collect::<String>(),
        all = all(rows().map(|(name, _)| name)),
        name = method(
            "name",
            "&'static str",
            rows().map(|(name, _)| (name, format!("\"{name}\"")))
        ),
        status = method(
            "status",
            "u16",
            rows().map(|(name, row)| (name, row.status.to_string()))
        ),
        retry = method(
            "retry_is_safe",
            "bool",
            rows().map(|(name, row)| (name, row.retry.to_string()))
        ),
    )
}

fn path_enum(rows: &[PathRow]) -> String {
    let names = || rows.iter().map(|row| row.name.as_str());
    format!(
        r#"/// Path of a call, a link or a connection; within each kind of traffic the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Path {{
{variants}}}

impl Path {{
    /// Every path.
    pub const ALL: &'static [Self] = &[
{all}    ];

    /// Returns the name in records, metrics and headers.
{name}
    /// Returns the name with a NUL at the end, for the C ABI.
{c_name}
    /// Returns whether the path is planned: no code implements it, and nothing selects it.
    pub const fn is_planned(self) -> bool {{
        {planned}
    }}

    /// Returns whether the path leaves bytes between machines unencrypted.
    pub const fn is_clear(self) -> bool {{
        {clear}
    }}
}}
"#,
        variants = variants(rows.iter().map(|row| (&*row.name, &*row.text))),
        all = all(names()),
        name = method(
            "name",
            "&'static str",
            names().map(|name| (name, format!("\"{name}\"")))
        ),
        c_name = method(
            "c_name",
            "&'static CStr",
            names().map(|name| (name, format!("c\"{name}\"")))
        ),
        planned = any_of(rows.iter().filter(|row| row.planned)),
        clear = any_of(rows.iter().filter(|row| row.clear == Some(true))),
    )
}

fn any_of<'a>(rows: impl Iterator<Item = &'a PathRow>) -> String {
    let variants: Vec<_> = rows
        .map(|row| format!("Self::{}", camel(&row.name)))
        .collect();
    if variants.is_empty() {
        "false".to_owned()
    } else {
        format!("matches!(self, {})", variants.join(" | "))
    }
}

fn obstacle_enum(rows: &[ObstacleRow]) -> String {
    let each = || rows.iter().map(|row| (row.name.as_str(), row));
    format!(
        r#"/// Obstacle to a nearer path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Obstacle {{
{variants}}}

impl Obstacle {{
    /// Every obstacle.
    pub const ALL: &'static [Self] = &[
{all}    ];

    /// Returns the name in records, metrics and headers.
{name}
    /// Returns an explanation for users.
{text}
    /// Returns the paths that the obstacle excludes.
{against}}}
"#,
        variants = variants(each().map(|(name, row)| (name, &*row.text))),
        all = all(each().map(|(name, _)| name)),
        name = method(
            "name",
            "&'static str",
            each().map(|(name, _)| (name, format!("\"{name}\"")))
        ),
        text = method(
            "text",
            "&'static str",
            each().map(|(name, row)| (name, format!("\"{}\"", row.text)))
        ),
        against = method(
            "against",
            "&'static [Path]",
            each().map(|(name, row)| (name, against(row)))
        ),
    )
}

fn against(row: &ObstacleRow) -> String {
    let paths: Vec<_> = row
        .against
        .iter()
        .map(|name| format!("Path::{}", camel(name)))
        .collect();
    format!("&[{}]", paths.join(", "))
}

fn candidates(rows: &[&PathRow], facts: &str) -> String {
    let row = |row: &&PathRow| {
        let (path, module) = (camel(&row.name), &row.name);
        format!("        Candidate {{ path: Path::{path}, obstacle: {module}::obstacle }},\n")
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "\nimpl Facts for {facts} {{\n    const CANDIDATES: &'static [Candidate<Self>] = &[\n{rows}    ];\n}}\n"
    )
}

fn variants<'a>(rows: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    rows.map(|(name, text)| format!("    /// {}\n    {},\n", doc(text), camel(name)))
        .collect()
}

fn all<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names
        .map(|name| format!("        Self::{},\n", camel(name)))
        .collect()
}

fn method<'a>(
    name: &str,
    returns: &str,
    values: impl Iterator<Item = (&'a str, String)>,
) -> String {
    let arms: String = values
        .map(|(name, value)| format!("            Self::{} => {value},\n", camel(name)))
        .collect();
    format!(
        "    pub const fn {name}(self) -> {returns} {{\n        match self {{\n{arms}        }}\n    }}\n"
    )
}

/// A text as a sentence; `gRPC` stays as it is.
fn doc(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    let first = if rest.starts_with(char::is_uppercase) {
        first.to_owned()
    } else {
        first.to_uppercase()
    };
    let end = if text.ends_with('.') { "" } else { "." };
    first + rest + end
}
