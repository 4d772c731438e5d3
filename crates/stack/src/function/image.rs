//! Code of a function: the rule by which `image:`, `handler:` and `lang:` become one image.

use std::path::{Path, PathBuf};

use super::FunctionDraft;
use crate::context::StackContext;
use crate::problem::ProblemList;
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::{SpannedText, shorten};

/// Keys that the image is made from.
#[derive(Default)]
pub(super) struct ImageSource {
    pub(super) lang: Option<SpannedText>,
    pub(super) handler: Option<SpannedText>,
    pub(super) image: Option<SpannedText>,
}

impl ImageSource {
    /// Applies the rule: `image:` unchanged; else the folder of `handler:`, if there is a command
    /// to start it.
    pub(super) fn resolve_image(
        &self,
        draft: &mut FunctionDraft,
        folder: &Path,
        context: &dyn StackContext,
        problems: &mut ProblemList<'_>,
    ) {
        // First: OpenFaaS files often have all three keys, and `handler` then concerns only the
        // build.
        if let Some(image) = &self.image {
            return self.use_image(image, draft, problems);
        }
        let Some(handler) = &self.handler else {
            let text = format!("function {} has nothing to run", draft.spec.service);
            let problem = problems.add_error(draft.name_span, text);
            problem.set_help(
                "write `handler: ./FOLDER` and `fprocess: COMMAND`, or `image: REFERENCE`",
            );
            return;
        };
        check_command(draft, handler.span, problems);
        // `components` drops `./`.
        let path: PathBuf = folder.join(&handler.text).components().collect();
        match context
            .resolve_folder(&path)
            .map(|path| path.to_str().map(str::to_owned))
        {
            Ok(Some(path)) => draft.spec.image = format!("file://{path}"),
            Ok(None) => {
                problems.add_error(
                    handler.span,
                    format!("the path of {} is not UTF-8", path.display()),
                );
            }
            Err(error) => {
                problems.add_error(
                    handler.span,
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
                    image.span,
                    "an image that is a folder is written file:///ABSOLUTE/FOLDER",
                );
                problem.set_help(
                    "`handler: ./FOLDER` instead of `image:` takes a path relative to this file",
                );
            }
            check_command(draft, image.span, problems);
        // `dockerfile` means that the image was built elsewhere, so there is nothing to warn about.
        } else if let Some(lang) = self
            .lang
            .as_ref()
            .filter(|lang| !lang.text.eq_ignore_ascii_case("dockerfile"))
        {
            let text = format!(
                "templates (`lang: {}`) are not built here: the image is deployed unchanged",
                shorten(&lang.text)
            );
            problems.add_warning(lang.span, text);
        }
    }
}

/// Requires a command: a folder contains no hint how to start it.
fn check_command(draft: &FunctionDraft, span: SourceSpan, problems: &mut ProblemList<'_>) {
    let spec = &draft.spec;
    let has_variable = |name| spec.env_vars.get(name).is_some_and(|text| !text.is_empty());
    // The watchdog serves files itself in this mode and starts nothing.
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
            "function {} has no command: a folder does not define how to start it",
            spec.service
        );
        problems
            .add_error(span, text)
            .set_help("add `fprocess: COMMAND`, for example `fprocess: python3 handler.py`");
    }
}
