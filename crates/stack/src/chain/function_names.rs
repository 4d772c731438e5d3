//! Functions that the names in chains refer to.

use std::collections::{BTreeSet, HashMap};

use nearpath_types::FunctionId;

use crate::function::FunctionDraft;
use crate::problem::{ProblemList, suggest_similar};
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::{SpannedText, shorten};

/// Functions of the file, by the names that edges use.
pub(super) struct FunctionNames<'a> {
    by_id: HashMap<FunctionId, usize>,
    by_name: HashMap<String, usize>,
    /// Names of functions that could not be read and are reported already.
    broken: &'a BTreeSet<String>,
}

/// Function that a name refers to.
pub(super) enum ResolvedName {
    Local(usize),
    /// Function of another namespace that is not in this file.
    External(FunctionId),
    Broken,
}

impl<'a> FunctionNames<'a> {
    pub(super) fn from_drafts(drafts: &[FunctionDraft], broken: &'a BTreeSet<String>) -> Self {
        let ids = drafts.iter().map(|draft| draft.spec.id()).enumerate();
        let by_id: HashMap<_, _> = ids.map(|(index, id)| (id, index)).collect();
        let by_name = by_id
            .iter()
            .map(|(id, index)| (id.name.to_string(), *index))
            .collect();
        Self {
            by_id,
            by_name,
            broken,
        }
    }

    pub(super) fn resolve_name(
        &self,
        name: &SpannedText,
        problems: &mut ProblemList<'_>,
    ) -> ResolvedName {
        if self.broken.contains(&name.text) {
            return ResolvedName::Broken;
        }
        let id = name.text.parse::<FunctionId>();
        // Only a name with a dot names a namespace: a bare name always means a function of this
        // file.
        if let (true, Ok(id)) = (name.text.contains('.'), &id) {
            return self
                .by_id
                .get(id)
                .map_or(ResolvedName::External(id.clone()), |index| {
                    ResolvedName::Local(*index)
                });
        }
        if let Some(index) = self.by_name.get(&name.text) {
            return ResolvedName::Local(*index);
        }
        let why = if id.is_ok() {
            "is not below `functions:`"
        } else {
            "is not a function's name"
        };
        let problem = problems.add_error(
            name.span,
            format!("function `{}` {why}", shorten(&name.text)),
        );
        // Functions of the file only: names of other namespaces are not known here.
        problem.help = suggest_similar(&name.text, self.by_name.keys().map(String::as_str));
        ResolvedName::Broken
    }

    /// Reports an alias that equals a function's name: the name must always mean that function.
    pub(super) fn check_alias(
        &self,
        alias: Option<&str>,
        span: SourceSpan,
        problems: &mut ProblemList<'_>,
    ) {
        let Some(alias) =
            alias.filter(|alias| self.by_name.contains_key(*alias) || self.broken.contains(*alias))
        else {
            return;
        };
        problems
            .add_error(
                span,
                format!("alias `{}` is a function's name", shorten(alias)),
            )
            .set_help("choose another alias");
    }
}
