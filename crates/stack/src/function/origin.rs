//! What a function runs: the rule by which `image:`, `handler:` and `lang:` become one image.

use std::path::{Path, PathBuf};

use super::Draft;
use crate::problem::Problems;
use crate::surroundings::Surroundings;
use crate::text::Place;
use crate::yaml::shape::{Text, brief};

/// What the image is made from.
#[derive(Default)]
pub(super) struct Origin {
    pub(super) lang: Option<Text>,
    pub(super) handler: Option<Text>,
    pub(super) image: Option<Text>,
}

impl Origin {
    /// The rule: `image:` as it is; else the folder that `handler:` names, if it is known how to start what is in it.
    pub(super) fn settle(
        &self,
        draft: &mut Draft,
        folder: &Path,
        around: &dyn Surroundings,
        problems: &mut Problems<'_>,
    ) {
        if let Some(image) = &self.image {
            return self.given(image, draft, problems);
        }
        let Some(handler) = &self.handler else {
            let text = format!("function {} says nothing of what to run", draft.spec.service);
            let problem = problems.error(draft.name_place, text);
            problem.help("write `handler: ./FOLDER` and `fprocess: COMMAND`, or `image: REFERENCE`");
            return;
        };
        check_command(draft, handler.place, problems);
        let path: PathBuf = folder.join(&handler.text).components().collect(); // without its `./`
        match around.folder(&path).map(|path| path.to_str().map(str::to_owned)) {
            Ok(Some(path)) => draft.spec.image = format!("file://{path}"),
            Ok(None) => {
                problems.error(handler.place, format!("the path of {} is not UTF-8", path.display()));
            }
            Err(error) => {
                problems.error(handler.place, format!("handler folder {}: {error}", path.display()));
            }
        }
    }

    fn given(&self, image: &Text, draft: &mut Draft, problems: &mut Problems<'_>) {
        draft.spec.image.clone_from(&image.text);
        if let Some(path) = image.text.strip_prefix("file://") {
            if !path.starts_with('/') {
                let problem =
                    problems.error(image.place, "an image that is a folder is written file:///ABSOLUTE/FOLDER");
                problem.help("`handler: ./FOLDER` instead of `image:` takes a path relative to this file");
            }
            check_command(draft, image.place, problems);
        } else if let Some(lang) = self.lang.as_ref().filter(|lang| !lang.text.eq_ignore_ascii_case("dockerfile")) {
            let text =
                format!("templates (`lang: {}`) are not built here: the image is deployed as it is", brief(&lang.text));
            problems.warn(lang.place, text);
        }
    }
}

/// A folder holds no hint of how it is started.
fn check_command(draft: &Draft, place: Place, problems: &mut Problems<'_>) {
    let spec = &draft.spec;
    let variable = |name| spec.env_vars.get(name).is_some_and(|text| !text.is_empty());
    let fixed = spec.env_vars.get("mode").is_some_and(|mode| mode == "static");
    if spec.env_process.is_empty() && !variable("fprocess") && !variable("function_process") && !fixed {
        let text = format!("function {} has no command: a folder does not say how it is started", spec.service);
        problems.error(place, text).help("add `fprocess: COMMAND`, for example `fprocess: python3 handler.py`");
    }
}
