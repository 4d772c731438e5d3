//! The image of a deployment: a folder of the node, which must exist.

use std::path::PathBuf;

use nearpath_types::{FunctionSpec, Reason};

use super::api_error::ApiError;
use crate::controller::Controller;

/// The tag that `faas-cli deploy -f` appends to an image without one.
const DEFAULT_TAG: &str = ":latest";

/// Checks that the image's folder exists, so that the author hears of a mistake at once. Removes a
/// tag if only the folder without it exists. The model's rules check everything else.
///
/// # Errors
/// 400 if no such folder exists.
pub(super) async fn resolve_image(
    controller: &Controller,
    spec: &mut FunctionSpec,
) -> Result<(), ApiError> {
    let Some(path) = spec.image.strip_prefix("file:///") else {
        return Ok(());
    };
    let fleet = &controller.inner.fleet;
    let path = format!("/{path}");
    if fleet.has_folder(PathBuf::from(&path)).await {
        return Ok(());
    }
    if let Some(folder) = path.strip_suffix(DEFAULT_TAG)
        && fleet.has_folder(PathBuf::from(folder)).await
    {
        spec.image = format!("file://{folder}");
        return Ok(());
    }
    Err(ApiError::new(
        Reason::BadRequest,
        format!("image: {path:?} is no folder on the node, or the node may not read it"),
    ))
}
