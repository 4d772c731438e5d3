//! Renders the page of all comparisons from the JSON of their last runs.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::report::{GoalRatio, results_folder};

/// Column order of the page; other columns follow by name.
const COLUMN_ORDER: [&str; 9] = [
    "case",
    "variant",
    "n",
    "p50_us",
    "p99_us",
    "rps",
    "seconds",
    "cpu_us_per_request",
    "failed",
];

const INTRODUCTION: &str = "\
# Results

`make bench-report` generates this page from the last run of each comparison in
[bench/results](../../bench/results); do not edit it. [The guide](../guide/measuring.md) describes the
comparisons and their method. Each comparison ran on a machine with two cores, in some cases beside other
work. Compare variants within a case, never times across pages.
";

/// Renders the page from every JSON file of the results folder, by name.
///
/// # Errors
/// When a file cannot be read or is no report.
pub(crate) fn render_all() -> io::Result<String> {
    let mut paths: Vec<_> = fs::read_dir(results_folder())?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    // Directory order differs between file systems, and the page is committed.
    paths.sort();
    let mut page = INTRODUCTION.to_owned();
    for path in &paths {
        let invalid = |error| io::Error::other(format!("{}: {error}", path.display()));
        let report: Value = serde_json::from_slice(&fs::read(path)?).map_err(invalid)?;
        page += &render_report(&report_name(path), &report);
    }
    Ok(page)
}

fn report_name(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn render_report(name: &str, report: &Value) -> String {
    let mut out = format!("\n## {name}\n\n`make bench-{name}`\n");
    let ratios: Vec<_> = report["ratios"].as_array().into_iter().flatten().collect();
    if !ratios.is_empty() {
        out += "\n| figure | value | goal | result |\n| --- | ---: | ---: | --- |\n";
        ratios.iter().for_each(|ratio| out += &ratio_line(ratio));
    }
    let rows: Vec<_> = report["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .collect();
    if let Some(first) = rows.first() {
        let columns = table_columns(first);
        out += &row_table(&columns, &rows);
    }
    out
}

/// Returns the table line of a ratio; some are only reported and have no goal.
fn ratio_line(ratio: &Value) -> String {
    let (name, value) = (
        escape_cell(ratio["name"].as_str().unwrap_or_default()),
        ratio["value"].as_f64().unwrap_or(f64::NAN),
    );
    let Ok(with_goal) = GoalRatio::deserialize(ratio) else {
        return format!("| {name} | {value:.2} | – | – |\n");
    };
    let result = match with_goal.is_met() {
        true => "met",
        false => "**missed**",
    };
    let (sign, goal) = (with_goal.better.goal_sign(), with_goal.goal);
    format!("| {name} | {value:.2} | {sign} {goal} | {result} |\n")
}

fn table_columns(row: &Map<String, Value>) -> Vec<String> {
    let known = COLUMN_ORDER
        .iter()
        .filter(|name| row.contains_key(**name))
        .map(|name| (*name).to_owned());
    let others = row
        .keys()
        .filter(|name| !COLUMN_ORDER.contains(&name.as_str()))
        .cloned();
    known.chain(others).collect()
}

fn row_table(columns: &[String], rows: &[&Map<String, Value>]) -> String {
    let titles: Vec<_> = columns
        .iter()
        .map(|name| name.replace("_us", " µs").replace('_', " "))
        .collect();
    let rule = |name: &String| {
        if ["case", "variant"].contains(&name.as_str()) {
            "---"
        } else {
            "---:"
        }
    };
    let rules: Vec<_> = columns.iter().map(rule).collect();
    let mut out = format!("\n| {} |\n| {} |\n", titles.join(" | "), rules.join(" | "));
    for row in rows {
        let cells: Vec<_> = columns
            .iter()
            .map(|name| value_cell(&row[name.as_str()]))
            .collect();
        let _ = writeln!(out, "| {} |", cells.join(" | ")); // a String takes every write
    }
    out
}

fn value_cell(value: &Value) -> String {
    match value {
        Value::String(text) => escape_cell(text),
        Value::Number(number) => format_number(number.as_f64().unwrap_or(f64::NAN)),
        Value::Null => "-".to_owned(),
        other => escape_cell(&other.to_string()),
    }
}

/// Formats a number with three significant digits: the measurement has no more precision.
fn format_number(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 || n == n.trunc() => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// Escapes the bar, which would end the cell.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_becomes_two_tables() {
        let report = json!({
            "rows": [{ "case": "a | b", "variant": "v", "rps": 1234.5, "p50_us": 6.04, "n": 10, "failed": 0, "extra": null }],
            "ratios": [
                { "name": "speed", "value": 0.5, "better": "higher", "goal": 0.8 },
                { "name": "memory", "value": 4.9, "better": "lower", "goal": null },
            ],
        });
        let page = render_report("edge", &report);
        assert!(
            page.contains("| speed | 0.50 | ≥ 0.8 | **missed** |"),
            "{page}"
        );
        assert!(page.contains("| memory | 4.90 | – | – |"), "{page}");
        assert!(
            page.contains("| case | variant | n | p50 µs | rps | failed | extra |"),
            "{page}"
        );
        assert!(
            page.contains("| a \\| b | v | 10 | 6.04 | 1234 | 0 | - |"),
            "{page}"
        );
    }
}
