//! Checks ARCHITECTURE.md against the code: every file, module, type and function that it names
//! exists.

use std::collections::BTreeSet;
use std::path::Path;

use crate::names::definition_names;

const DOCUMENT: &str = "ARCHITECTURE.md";
/// Folders whose files a document may name.
const FOLDERS: [&str; 9] = [
    "crates/",
    "bpf/",
    "contract/",
    "docs/",
    "sdk/",
    "tests/",
    "tools/",
    "examples/",
    "bench/",
];

/// Compares the names between backticks with the tree; every name without a definition is one
/// fault.
pub(crate) fn check() -> Result<String, Vec<String>> {
    let text = std::fs::read_to_string(DOCUMENT).map_err(|e| vec![format!("{DOCUMENT}: {e}")])?;
    let known = known_names().map_err(|fault| vec![fault])?;
    let exists = |path: &str| Path::new(path).exists();
    let faults = faults_of(&text, &known, exists);
    if faults.is_empty() {
        Ok(format!("{DOCUMENT}: every name exists"))
    } else {
        Err(faults)
    }
}

fn known_names() -> Result<BTreeSet<String>, String> {
    let mut known = definition_names()?;
    let crates = std::fs::read_dir("crates").map_err(|e| format!("crates: {e}"))?;
    // A path in a document begins with the crate, as in `wire::hop`.
    known.extend(crates.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
    Ok(known)
}

fn faults_of(text: &str, known: &BTreeSet<String>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Odd parts lie between two backticks.
        for code in line.split('`').skip(1).step_by(2) {
            if let Some(missing) = missing_part(code, known, &exists) {
                faults.push(format!(
                    "{DOCUMENT}:{}: `{code}`: nothing in the code is called {missing}",
                    number + 1
                ));
            }
        }
    }
    faults
}

/// The part of a name that the tree does not have, if `code` is a name of the code at all.
fn missing_part<'a>(
    code: &'a str,
    known: &BTreeSet<String>,
    exists: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    if FOLDERS.iter().any(|folder| code.starts_with(folder)) {
        // A path of a file is checked as a whole.
        return (!exists(code)).then_some(code);
    }
    let name = code.strip_suffix("()").unwrap_or(code);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_path = name.contains("::") || code.ends_with("()");
    // Other words between backticks are commands, settings and crates.
    if !is_path
        || !name
            .split("::")
            .all(|part| !part.is_empty() && part.chars().all(is_word))
    {
        return None;
    }
    // Each part is checked alone: documents abbreviate paths.
    name.split("::").find(|part| !known.contains(*part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let known = ["wire", "hop", "strip"].map(str::to_owned).into();
        faults_of(text, &known, |path| path == "crates/wire")
    }

    #[test]
    fn names_that_exist_pass() {
        assert_eq!(
            faults("`wire::hop::strip` and `strip()` of `crates/wire`, `make test`, `gone`"),
            [""; 0]
        );
    }

    #[test]
    fn a_name_that_is_gone_is_a_fault() {
        assert_eq!(faults("a\n`wire::gone`").len(), 1);
        assert_eq!(faults("`lost()` in `crates/lost`").len(), 2);
    }
}
