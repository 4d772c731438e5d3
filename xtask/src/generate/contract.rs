//! The rows of the contract files, checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// `contract/paths.toml`.
#[derive(Deserialize)]
pub(super) struct PathContract {
    #[serde(rename = "path")]
    pub(super) paths: Vec<PathRow>,
    #[serde(rename = "obstacle")]
    pub(super) obstacles: Vec<ObstacleRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathRow {
    pub(super) name: String,
    pub(super) traffic: Traffic,
    #[serde(default)]
    pub(super) planned: bool,
    carried_by: Vec<String>,
    pub(super) clear: Option<bool>,
    pub(super) text: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Traffic {
    Call,
    Link,
    Egress,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObstacleRow {
    pub(super) name: String,
    pub(super) against: Vec<String>,
    #[serde(rename = "who")]
    _who: Who,
    pub(super) text: String,
}

/// Role that can remove an obstacle, or that causes a reason.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Who {
    Caller,
    Function,
    Platform,
    Operator,
}

/// `contract/reasons.toml`, by number.
pub(super) struct ReasonContract(pub(super) Vec<(String, ReasonRow)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasonRow {
    pub(super) number: u8,
    pub(super) status: u16,
    pub(super) retry: bool,
    pub(super) text: String,
    #[serde(default)]
    retired: bool,
    #[serde(rename = "who")]
    _who: Who,
}

impl PathContract {
    pub(super) fn read(root: &Path) -> Result<Self, Vec<String>> {
        let contract: Self = parse(root, "paths.toml")?;
        let faults = contract.faults(|folder| root.join(folder).is_dir());
        if faults.is_empty() {
            Ok(contract)
        } else {
            Err(faults)
        }
    }

    /// The paths that can be selected for a kind of traffic, nearest first.
    pub(super) fn candidates(&self, traffic: Traffic) -> Vec<&PathRow> {
        self.paths
            .iter()
            .filter(|row| row.traffic == traffic && !row.planned)
            .collect()
    }

    /// Obstacles that an answer to a call can name.
    pub(super) fn call_obstacles(&self) -> Vec<&ObstacleRow> {
        let carries_calls = |name: &String| {
            self.paths
                .iter()
                .any(|row| row.name == *name && row.traffic == Traffic::Call)
        };
        self.obstacles
            .iter()
            .filter(|row| row.against.iter().any(carries_calls))
            .collect()
    }

    fn faults(&self, has_folder: impl Fn(&str) -> bool) -> Vec<String> {
        let rows = self
            .paths
            .iter()
            .map(|row| (row.name.as_str(), row.text.as_str()));
        let mut faults = unfit(
            rows.chain(
                self.obstacles
                    .iter()
                    .map(|row| (row.name.as_str(), row.text.as_str())),
            ),
        );
        for row in &self.paths {
            // A planned path has no code yet; any other must have some.
            if row.planned != row.carried_by.is_empty() {
                faults.push(format!(
                    "path {}: either it is planned, or carried_by names a folder",
                    row.name
                ));
            }
            if row.planned != row.clear.is_none() {
                faults.push(format!(
                    "path {}: either it is planned, or `clear` says whether it encrypts",
                    row.name
                ));
            }
            let missing = row.carried_by.iter().filter(|folder| !has_folder(folder));
            faults.extend(
                missing.map(|folder| format!("path {}: there is no folder {folder}", row.name)),
            );
        }
        let known: BTreeSet<_> = self.paths.iter().map(|row| &row.name).collect();
        for row in &self.obstacles {
            // A misspelled path would silently disable the obstacle.
            if row.against.is_empty() || !row.against.iter().all(|path| known.contains(path)) {
                faults.push(format!(
                    "obstacle {}: `against` names paths of this file",
                    row.name
                ));
            }
        }
        faults
    }
}

impl ReasonContract {
    pub(super) fn read(root: &Path) -> Result<Self, Vec<String>> {
        let rows: BTreeMap<String, ReasonRow> = parse(root, "reasons.toml")?;
        let mut faults = unfit(
            rows.iter()
                .map(|(name, row)| (name.as_str(), row.text.as_str())),
        );
        let numbers: BTreeSet<_> = rows.values().map(|row| row.number).collect();
        // 0 means "no reason" in the call protocol.
        if numbers.len() != rows.len() || numbers.contains(&0) {
            faults.push("reasons.toml: numbers begin with 1, and each is used once".to_owned());
        }
        // Retired numbers stay in the contract, so that they are never reused.
        let mut live: Vec<_> = rows.into_iter().filter(|(_, row)| !row.retired).collect();
        live.sort_by_key(|(_, row)| row.number);
        if faults.is_empty() {
            Ok(Self(live))
        } else {
            Err(faults)
        }
    }
}

fn parse<T: DeserializeOwned>(root: &Path, name: &str) -> Result<T, Vec<String>> {
    let path = root.join("contract").join(name);
    let text = std::fs::read_to_string(&path).map_err(|e| e.to_string());
    let parsed = text.and_then(|text| toml::from_str(&text).map_err(|e| e.to_string()));
    parsed.map_err(|fault| vec![format!("{}: {fault}", path.display())])
}

/// Faults of names and texts: names become identifiers in five languages, texts become comments and
/// literals.
fn unfit<'a>(rows: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let (mut faults, mut seen) = (Vec::new(), BTreeSet::new());
    for (name, text) in rows {
        let is_word = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !is_word || !seen.insert(name) {
            faults.push(format!(
                "{name:?}: a name is in lower case with underscores, and used once"
            ));
        }
        // The text goes unescaped into comments and literals of all languages.
        if text.len() < 10 || text.contains(['"', '\\', '\n']) || text.contains("*/") {
            faults.push(format!("{name}: its text is one line without quotes"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        toml::from_str::<PathContract>(text)
            .unwrap()
            .faults(|folder| folder == "here")
    }

    const GOOD: &str = r#"
        [[path]]
        name = "near"
        traffic = "call"
        carried_by = ["here"]
        clear = false
        text = "A path for tests."
        [[obstacle]]
        name = "too_far"
        against = ["near"]
        who = "operator"
        text = "it is too far away"
    "#;

    #[test]
    fn a_good_file_has_no_faults() {
        assert_eq!(faults(GOOD), [""; 0]);
    }

    #[test]
    fn each_fault_is_found() {
        for (from, to) in [
            ("\"too_far\"", "\"Too far\""),
            ("\"too_far\"", "\"near\""),
            ("[\"near\"]", "[\"nowhere\"]"),
            ("[\"here\"]", "[\"elsewhere\"]"),
            ("[\"here\"]", "[]"),
            ("clear = false", ""),
            ("it is too far away", "too far"),
        ] {
            assert_eq!(faults(&GOOD.replace(from, to)).len(), 1, "{from} -> {to}");
        }
    }

    #[test]
    fn nothing_selects_a_planned_path() {
        let planned = GOOD
            .replace("[\"here\"]", "[]\nplanned = true")
            .replace("clear = false", "");
        assert_eq!(faults(&planned), [""; 0]);
        assert!(
            toml::from_str::<PathContract>(&planned)
                .unwrap()
                .candidates(Traffic::Call)
                .is_empty()
        );
    }
}
