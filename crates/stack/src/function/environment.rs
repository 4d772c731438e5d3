//! Files of `environment_file:`: YAML with one key, `environment:`, a map.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::context::StackContext;
use crate::problem::{ProblemList, ProblemSeverity};
use crate::source::SourceText;
use crate::yaml;
use crate::yaml::typed_nodes::SpannedText;

/// Reads the variables of one file; their position is where the stack file names it. Problems
/// inside the file are reported at their own positions. The file is read without substitution.
pub(crate) fn read_environment_file(
    file: &SpannedText,
    folder: &Path,
    context: &dyn StackContext,
    problems: &mut ProblemList<'_>,
) -> BTreeMap<String, SpannedText> {
    let path: PathBuf = folder.join(&file.text).components().collect(); // `components` drops `./`
    let text = match context.read_file(&path) {
        Ok(text) => text,
        Err(error) => {
            problems.add_error(
                file.span,
                format!("environment file {}: {error}", path.display()),
            );
            return BTreeMap::new();
        }
    };
    let source = SourceText::without_substitution(&path.display().to_string(), &text);
    let mut file_problems = ProblemList::new(&source);
    let variables = parse_variables(&source, &mut file_problems);
    let has_errors = file_problems
        .problems
        .iter()
        .any(|problem| problem.severity == ProblemSeverity::Error);
    problems.problems.append(&mut file_problems.problems);
    match has_errors {
        // Nothing from a broken file: half of its variables would cause further, misleading errors.
        true => BTreeMap::new(),
        false => variables
            .into_iter()
            .map(|(key, text)| {
                (
                    key,
                    SpannedText {
                        span: file.span,
                        ..text
                    },
                )
            })
            .collect(),
    }
}

fn parse_variables(
    source: &SourceText,
    problems: &mut ProblemList<'_>,
) -> BTreeMap<String, SpannedText> {
    let mut variables = BTreeMap::new();
    let Some(root) = yaml::parse_yaml(source, problems) else {
        return variables;
    };
    for entry in problems.expect_map(&root, "an environment file") {
        match entry.key.as_str() {
            "environment" => variables = problems.expect_text_map(&entry.value, "environment"),
            _ => problems.warn_unknown_key(entry, "an environment file", &["environment"]),
        }
    }
    variables
}
