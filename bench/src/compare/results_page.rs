//! The page with the results of all comparisons, from the JSON of their last runs.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value};

use super::report::{GoalRatio, results_folder};

/// Columns in the order of the page; others follow by name.
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

Made by `make bench-report` from the last run of each comparison in [bench/results](../../bench/results); do not edit. What the
comparisons are, and how they are made, is in [the guide](../guide/measuring.md). Each was run on a machine of two cores, some of them
beside other work: compare variants within a case, never times across pages.
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
    let ratios: Vec<GoalRatio> =
        serde_json::from_value(report["ratios"].clone()).unwrap_or_default();
    if !ratios.is_empty() {
        out += "\n| figure | value | goal | |\n| --- | ---: | ---: | --- |\n";
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

fn ratio_line(ratio: &GoalRatio) -> String {
    let met = if ratio.is_met() { "met" } else { "**missed**" };
    format!(
        "| {} | {:.2} | {} {} | {met} |\n",
        escape_cell(&ratio.name),
        ratio.value,
        ratio.better.goal_sign(),
        ratio.goal
    )
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

/// Three significant digits, and no more precision than the measurement has.
fn format_number(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 || n == n.trunc() => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// A bar would end the cell.
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
            "ratios": [{ "name": "speed", "value": 0.5, "better": "higher", "goal": 0.8 }],
        });
        let page = render_report("edge", &report);
        assert!(
            page.contains("| speed | 0.50 | ≥ 0.8 | **missed** |"),
            "{page}"
        );
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
