//! What a function runs: the rule by which `image:`, `handler:` and `lang:` become one image.

use std::path::{Path, PathBuf};

use super::FunctionDraft;
use crate::context::StackContext;
use crate::problem::ProblemList;
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::{SpannedText, shorten};

/// What the image is made from.
#[derive(Default)]
pub(super) struct ImageSource {
    pub(super) lang: Option<SpannedText>,
    pub(super) handler: Option<SpannedText>,
    pub(super) image: Option<SpannedText>,
}

impl ImageSource {
    /// The rule: `image:` as it is; else the folder that `handler:` names, if it is known how to start what is in it.
    pub(super) fn resolve_image(
        &self,
        draft: &mut FunctionDraft,
        folder: &Path,
        context: &dyn StackContext,
        problems: &mut ProblemList<'_>,
    ) {
        if let Some(image) = &self.image {
            return self.use_image(image, draft, problems);
        }
        let Some(handler) = &self.handler else {
            let text = format!(
                "function {} says nothing of what to run",
                draft.spec.service
            );
            let problem = problems.add_error(draft.name_span, text);
            problem.set_help(
                "write `handler: ./FOLDER` and `fprocess: COMMAND`, or `image: REFERENCE`",
            );
            return;
        };
        check_command(draft, handler.place, problems);
        let path: PathBuf = folder.join(&handler.text).components().collect(); // without its `./`
        match context
            .resolve_folder(&path)
            .map(|path| path.to_str().map(str::to_owned))
        {
            Ok(Some(path)) => draft.spec.image = format!("file://{path}"),
            Ok(None) => {
                problems.add_error(
                    handler.place,
                    format!("the path of {} is not UTF-8", path.display()),
                );
            }
            Err(error) => {
                problems.add_error(
                    handler.place,
                    format!("handler folder {}: {error}", path.display()),
                );
            }
        }
    }

    fn use_image(
        &self,
        image: &SpannedText,
        draft: &mut FunctionDraft,
        problems: &mut ProblemList<'_>,
    ) {
        draft.spec.image.clone_from(&image.text);
        if let Some(path) = image.text.strip_prefix("file://") {
            if !path.starts_with('/') {
                let problem = problems.add_error(
                    image.place,
                    "an image that is a folder is written file:///ABSOLUTE/FOLDER",
                );
                problem.set_help(
                    "`handler: ./FOLDER` instead of `image:` takes a path relative to this file",
                );
            }
            check_command(draft, image.place, problems);
        } else if let Some(lang) = self
            .lang
            .as_ref()
            .filter(|lang| !lang.text.eq_ignore_ascii_case("dockerfile"))
        {
            let text = format!(
                "templates (`lang: {}`) are not built here: the image is deployed as it is",
                shorten(&lang.text)
            );
            problems.add_warning(lang.place, text);
        }
    }
}

/// A folder holds no hint of how it is started.
fn check_command(draft: &FunctionDraft, place: SourceSpan, problems: &mut ProblemList<'_>) {
    let spec = &draft.spec;
    let has_variable = |name| spec.env_vars.get(name).is_some_and(|text| !text.is_empty());
    let is_static = spec
        .env_vars
        .get("mode")
        .is_some_and(|mode| mode == "static");
    if spec.env_process.is_empty()
        && !has_variable("fprocess")
        && !has_variable("function_process")
        && !is_static
    {
        let text = format!(
            "function {} has no command: a folder does not say how it is started",
            spec.service
        );
        problems
            .add_error(place, text)
            .set_help("add `fprocess: COMMAND`, for example `fprocess: python3 handler.py`");
    }
}
