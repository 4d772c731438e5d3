//! Checks the names of the code against `names.toml`: words per name, names defined in many crates,
//! forbidden words.
//!
//! `cargo xtask names` prints the figures and every fault; `cargo xtask names CRATE` lists the
//! names of one crate.

mod report;
mod scan;
mod source;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use report::Figures;
use scan::{Scan, Subject};

/// Bounds and lists of `names.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    bounds: Bounds,
    /// Words that no name may have, with what to say instead.
    forbidden: BTreeMap<String, String>,
    /// Words that no comment may have, with what to say instead.
    forbidden_in_comments: BTreeMap<String, String>,
    /// Last words of constants that are times.
    time_endings: BTreeSet<String>,
    /// Names that outside interfaces impose, hence allowed in spite of the lists.
    allowed: BTreeSet<String>,
}

/// Shares are percentages of the definitions outside tests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounds {
    min_words_per_type: f64,
    max_single_word_types: f64,
    max_types_defined_thrice: usize,
    max_crates_per_type_name: usize,
    max_single_word_functions: f64,
    max_question_docs: f64,
    min_comments_per_10k_tokens: f64,
    max_forbidden_names: usize,
    max_forbidden_comments: usize,
    max_unclear_times: usize,
}

/// Compares the code with `names.toml`; every difference is one fault.
pub(crate) fn check() -> Result<String, Vec<String>> {
    let rules = rules().map_err(|fault| vec![fault])?;
    let scan = source::scan_tree().map_err(|fault| vec![fault])?;
    let figures = Figures::of(&scan);
    println!("{figures}");
    let mut faults = figures.faults(&rules.bounds);
    faults.extend(report::names_in_many_crates(
        &scan,
        rules.bounds.max_crates_per_type_name,
        &rules.allowed,
    ));
    let names = scan
        .definitions
        .iter()
        .filter_map(|definition| words::name_fault(definition, &rules))
        .collect();
    let comments = scan
        .comments
        .iter()
        .filter_map(|comment| words::comment_fault(comment, &rules))
        .collect();
    let times = scan
        .definitions
        .iter()
        .filter_map(|definition| words::time_fault(definition, &rules))
        .collect();
    faults.extend(above("times", times, rules.bounds.max_unclear_times));
    faults.extend(above("names", names, rules.bounds.max_forbidden_names));
    faults.extend(above(
        "comments",
        comments,
        rules.bounds.max_forbidden_comments,
    ));
    if faults.is_empty() {
        Ok("names: the code keeps to names.toml".to_owned())
    } else {
        Err(faults)
    }
}

/// The faults, if there are more of them than the bound.
fn above(what: &str, faults: Vec<String>, bound: usize) -> Vec<String> {
    // Printed in any case, so that a bound can be lowered to the figure.
    println!("faults of {what}: {}, bound {bound}", faults.len());
    // The bound may only fall: it keeps old faults from blocking every change.
    if faults.len() > bound {
        faults
    } else {
        Vec::new()
    }
}

/// Prints the definitions of one crate and its figures, for whoever renames it.
pub(crate) fn list(krate: &str) -> Result<String, Vec<String>> {
    let scan = source::scan_tree().map_err(|fault| vec![fault])?;
    let own: Scan = scan.of_crate(krate);
    if own.definitions.is_empty() {
        return Err(vec![format!(
            "names: no crate {krate}: name its folder, as in crates/shm"
        )]);
    }
    let shown = own
        .definitions
        .iter()
        .filter(|definition| definition.subject != Subject::Test);
    shown.for_each(|definition| println!("{definition}"));
    Ok(Figures::of(&own).to_string())
}

/// Every name that the tree defines.
pub(crate) fn definition_names() -> Result<BTreeSet<String>, String> {
    Ok(source::scan_tree()?
        .definitions
        .into_iter()
        .map(|definition| definition.name)
        .collect())
}

fn rules() -> Result<Rules, String> {
    let text = std::fs::read_to_string("names.toml")
        .map_err(|e| format!("names.toml: {e} (run from the top folder)"))?;
    toml::from_str(&text).map_err(|e| format!("names.toml: {e}"))
}
