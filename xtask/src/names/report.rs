//! Figures of the names, and the bounds they keep.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Bounds;
use super::scan::{Definition, Scan, Subject};
use super::words::words_of;

/// First words of docs that leave the sentence's subject open.
const QUESTION_WORDS: [&str; 6] = ["What", "Who", "Whether", "Where", "One", "It"];

/// Figures over the definitions outside tests.
pub(super) struct Figures {
    types: usize,
    words_per_type: f64,
    single_word_types: f64,
    types_defined_thrice: usize,
    functions: usize,
    single_word_functions: f64,
    docs: usize,
    question_docs: f64,
    comments_per_10k_tokens: f64,
}

impl Figures {
    pub(super) fn of(scan: &Scan) -> Self {
        // Tests have helpers and sentences as names, which would distort the figures.
        let product = || {
            scan.definitions
                .iter()
                .filter(|definition| !definition.in_test)
        };
        let types: Vec<&Definition> = product().filter(|d| d.subject == Subject::Type).collect();
        let functions: Vec<&Definition> = product()
            .filter(|d| d.subject == Subject::Function && !d.imposed)
            .collect();
        let words: usize = types.iter().map(|d| words_of(&d.name).len()).sum();
        let docs: Vec<&String> = scan
            .definitions
            .iter()
            .filter_map(|d| d.doc_start.as_ref())
            .collect();
        let questions = docs
            .iter()
            .filter(|word| QUESTION_WORDS.contains(&word.as_str()))
            .count();
        let comments = scan
            .comments
            .iter()
            .filter(|comment| !comment.doc && !comment.in_test)
            .count();
        let tokens: usize = scan
            .tokens
            .iter()
            .filter(|count| !count.1)
            .map(|count| count.2)
            .sum();
        Self {
            types: types.len(),
            words_per_type: ratio(words, types.len()),
            single_word_types: 100.0 * single_words(&types),
            types_defined_thrice: counts(&types).values().filter(|count| **count >= 3).count(),
            functions: functions.len(),
            single_word_functions: 100.0 * single_words(&functions),
            docs: docs.len(),
            question_docs: 100.0 * ratio(questions, docs.len()),
            comments_per_10k_tokens: 10_000.0 * ratio(comments, tokens),
        }
    }

    /// Bounds that the figures do not keep.
    pub(super) fn faults(&self, bounds: &Bounds) -> Vec<String> {
        let mut faults = Vec::new();
        let mut hold = |kept: bool, what: &str, is: f64, bound: f64| {
            if !kept {
                faults.push(format!("names: {what}: {is:.1}, the bound is {bound:.1}"));
            }
        };
        let at_most = |is: f64, bound: f64| is <= bound;
        let (words, single) = (self.words_per_type, self.single_word_types);
        hold(
            words >= bounds.min_words_per_type,
            "words per type name",
            words,
            bounds.min_words_per_type,
        );
        hold(
            at_most(single, bounds.max_single_word_types),
            "single-word type names, %",
            single,
            bounds.max_single_word_types,
        );
        let (thrice, max_thrice) = (
            self.types_defined_thrice as f64,
            bounds.max_types_defined_thrice as f64,
        );
        hold(
            at_most(thrice, max_thrice),
            "type names defined three times or more",
            thrice,
            max_thrice,
        );
        let (functions, max) = (self.single_word_functions, bounds.max_single_word_functions);
        hold(
            at_most(functions, max),
            "single-word function names, %",
            functions,
            max,
        );
        hold(
            at_most(self.question_docs, bounds.max_question_docs),
            "docs that begin with What/Who/Whether/Where/One/It, %",
            self.question_docs,
            bounds.max_question_docs,
        );
        let (comments, min) = (
            self.comments_per_10k_tokens,
            bounds.min_comments_per_10k_tokens,
        );
        hold(
            comments >= min,
            "plain comments per 10,000 tokens",
            comments,
            min,
        );
        faults
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "types: {}, {:.2} words a name, {:.0} % single words, {} names defined three times or more",
            self.types, self.words_per_type, self.single_word_types, self.types_defined_thrice
        )?;
        writeln!(
            f,
            "functions: {}, {:.0} % single words",
            self.functions, self.single_word_functions
        )?;
        write!(
            f,
            "docs: {}, {:.1} % begin with a question word; plain comments: {:.1} per 10,000 tokens",
            self.docs, self.question_docs, self.comments_per_10k_tokens
        )
    }
}

/// Names of types that more crates define than the bound allows.
pub(super) fn names_in_many_crates(
    scan: &Scan,
    bound: usize,
    allowed: &BTreeSet<String>,
) -> Vec<String> {
    let mut crates: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for definition in scan
        .definitions
        .iter()
        .filter(|d| d.subject == Subject::Type && !d.in_test)
    {
        crates
            .entry(&definition.name)
            .or_default()
            .insert(&definition.krate);
    }
    let many = crates
        .iter()
        .filter(|(name, crates)| crates.len() > bound && !allowed.contains(**name));
    many.map(|(name, crates)| {
        format!(
            "names: type {name} is defined in {} crates: {crates:?}",
            crates.len()
        )
    })
    .collect()
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn single_words(definitions: &[&Definition]) -> f64 {
    ratio(
        definitions
            .iter()
            .filter(|d| words_of(&d.name).len() == 1)
            .count(),
        definitions.len(),
    )
}

fn counts<'a>(types: &[&'a Definition]) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    types
        .iter()
        .for_each(|d| *counts.entry(d.name.as_str()).or_default() += 1);
    counts
}
