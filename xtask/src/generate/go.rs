//! Go: `sdk/go`, laid out as gofmt does.

use super::banner;
use super::contract::{PathContract, ReasonContract};
use super::names::go_camel;

pub(super) fn paths(contract: &PathContract) -> String {
    let rows = || {
        contract
            .paths
            .iter()
            .map(|row| (format!("Path{}", go_camel(&row.name)), row))
    };
    let obstacles = contract.call_obstacles();
    format!(
        r#"// {banner}

package nearpath

// Path is the path of a call.
type Path string

// The paths.
const (
{paths})

// Names of the obstacles to a nearer path.
const (
{obstacles})

// isKnown reports whether this release defines the path.
func (p Path) isKnown() bool {{
	switch p {{
	case {known}:
		return true
	}}
	return false
}}
"#,
        banner = banner("paths.toml"),
        paths = aligned(rows().map(|(name, row)| {
            [
                name,
                "Path".to_owned(),
                format!("= \"{}\"", row.name),
                format!("// {}", row.text),
            ]
        })),
        obstacles = aligned(obstacles.iter().map(|row| {
            [
                format!("obstacle{}", go_camel(&row.name)),
                format!("= \"{}\"", row.name),
                format!("// {}", row.text),
            ]
        })),
        known = rows().map(|(name, _)| name).collect::<Vec<_>>().join(", "),
    )
}

pub(super) fn reasons(contract: &ReasonContract) -> String {
    let rows = || contract.0.iter().map(|(name, row)| (name.as_str(), row));
    format!(
        r#"// {banner}

// Package reason lists the reasons of platform errors.
package reason

// Numbers of the reasons.
const (
{numbers})

var names = [...]string{{
{names}}}

// Name returns the name of a number; unknown: an empty string.
func Name(number uint16) string {{
	if int(number) < len(names) {{
		return names[number]
	}}
	return ""
}}

// RetryIsSafe reports whether a retry after this reason cannot run the request twice.
func RetryIsSafe(name string) bool {{
	switch name {{
	case {safe}:
		return true
	}}
	return false
}}
"#,
        banner = banner("reasons.toml"),
        numbers = aligned(rows().map(|(name, row)| [
            go_camel(name),
            format!("= {}", row.number),
            format!("// {}", row.text)
        ])),
        names = aligned(
            rows().map(|(name, _)| [format!("{}:", go_camel(name)), format!("\"{name}\",")])
        ),
        safe = rows()
            .filter(|(_, row)| row.retry)
            .map(|(name, _)| format!("\"{name}\""))
            .collect::<Vec<_>>()
            .join(", "),
    )
}

/// Rows with their cells below each other; the last cell ends the line.
fn aligned<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = rows.collect();
    // gofmt would change unaligned columns, and the file would be stale.
    let width: [usize; N] =
        std::array::from_fn(|k| rows.iter().map(|row| row[k].len()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row
            .iter()
            .zip(width)
            .map(|(cell, width)| format!("{cell:width$} "))
            .collect::<String>();
        format!("\t{}\n", cells.trim_end())
    };
    rows.iter().map(line).collect()
}
