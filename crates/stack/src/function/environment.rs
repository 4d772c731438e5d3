//! `environment_file:` files: YAML with one key, `environment:`, a map.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::problem::{Problems, Weight};
use crate::surroundings::Surroundings;
use crate::text::Source;
use crate::yaml;
use crate::yaml::shape::Text;

/// The variables of one file, all at the place where the stack file names it. Problems inside the file are reported at
/// their own places. No substitution takes place in it.
pub(crate) fn read(
    file: &Text,
    folder: &Path,
    around: &dyn Surroundings,
    problems: &mut Problems<'_>,
) -> BTreeMap<String, Text> {
    let path: PathBuf = folder.join(&file.text).components().collect(); // without its `./`
    let text = match around.file(&path) {
        Ok(text) => text,
        Err(error) => {
            problems.error(file.place, format!("environment file {}: {error}", path.display()));
            return BTreeMap::new();
        }
    };
    let source = Source::verbatim(&path.display().to_string(), &text);
    let mut own = Problems::new(&source);
    let variables = variables(&source, &mut own);
    let broken = own.list.iter().any(|problem| problem.weight == Weight::Error);
    problems.list.append(&mut own.list);
    match broken {
        true => BTreeMap::new(),
        false => variables.into_iter().map(|(key, text)| (key, Text { place: file.place, ..text })).collect(),
    }
}

fn variables(source: &Source, problems: &mut Problems<'_>) -> BTreeMap<String, Text> {
    let mut out = BTreeMap::new();
    let Some(root) = yaml::parse(source, problems) else { return out };
    for entry in problems.map(&root, "an environment file") {
        match entry.key.as_str() {
            "environment" => out = problems.strings(&entry.value, "environment"),
            _ => problems.unknown(entry, "an environment file", &["environment"]),
        }
    }
    out
}
