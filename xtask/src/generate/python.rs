//! Python: `sdk/python/nearpath`.

use super::banner;
use super::contract::{ObstacleRow, PathContract, ReasonContract};
use super::names::upper;

pub(super) fn paths(contract: &PathContract) -> String {
    let names: Vec<_> = contract
        .paths
        .iter()
        .map(|row| format!("\"{}\"", row.name))
        .collect();
    let obstacle = |row: &&ObstacleRow| {
        format!(
            "{}: Final = \"{}\"  # {}\n",
            upper(&row.name),
            row.name,
            row.text
        )
    };
    format!(
        r#"# {banner}
"""Paths of calls, and names of the obstacles to a nearer path."""

from typing import Final, Literal, TypeAlias

Path: TypeAlias = Literal[{names}]
PATHS: Final[tuple[Path, ...]] = ({names})

{obstacles}"#,
        banner = banner("paths.toml"),
        names = names.join(", "),
        obstacles = contract
            .call_obstacles()
            .iter()
            .map(obstacle)
            .collect::<String>(),
    )
}

pub(super) fn reasons(contract: &ReasonContract) -> String {
    let safe = contract
        .0
        .iter()
        .filter(|(_, row)| row.retry)
        .map(|(name, _)| format!("        \"{name}\",\n"));
    format!(
        r#"# {banner}
"""Reasons of platform errors."""

from typing import Final

RETRY_IS_SAFE: Final = frozenset(
    {{
{safe}    }}
)
"#,
        banner = banner("reasons.toml"),
        safe = safe.collect::<String>(),
    )
}
