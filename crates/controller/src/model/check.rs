//! What a spec must fulfil before it is kept: whatever can be known at deploy time is told at deploy time.

use std::path::Path;

use nearpath_types::{FunctionSpec, Policy, Resources, quantity};

use super::{Model, Refusal, SecretId, SecretName};

/// Checks a spec against the rules and the model, and returns its settings.
pub(super) fn check(model: &Model, spec: &FunctionSpec) -> Result<Policy, Refusal> {
    if !model.has_namespace(&spec.namespace) {
        return Err(Refusal::NamespaceMissing(spec.namespace.clone()));
    }
    image(&spec.image)?;
    environment(spec)?;
    resources("limits", spec.limits.as_ref())?;
    resources("requests", spec.requests.as_ref())?;
    secrets(model, spec)?;
    Ok(Policy::of(spec)?)
}

/// The seam for an image store: until there is one, only folders can be run, and saying so beats an instance that never
/// starts.
fn image(image: &str) -> Result<(), Refusal> {
    let hint = "write file:///ABSOLUTE/FOLDER, a folder on the node";
    match image.strip_prefix("file://") {
        _ if image.is_empty() => Err(field("image", format!("it is missing: {hint}"))),
        None => Err(field("image", format!("{image:?}: images from a registry cannot be run yet: {hint}"))),
        Some(path) if !path.starts_with('/') => Err(field("image", format!("{image:?} is not absolute: {hint}"))),
        Some(path) if path.contains('\0') || path.split('/').any(|part| part == "..") => {
            Err(field("image", format!("{image:?} holds `..` or a NUL: {hint}")))
        }
        Some(path) if ["/proc", "/sys", "/dev"].iter().any(|root| Path::new(path).starts_with(root)) => {
            Err(field("image", format!("{image:?} is the kernel's, not a function's folder: {hint}")))
        }
        Some("/") => Err(field("image", format!("{image:?} is the whole machine: {hint}"))),
        Some(_) => Ok(()),
    }
}

/// Names and values that no process could be started with.
fn environment(spec: &FunctionSpec) -> Result<(), Refusal> {
    for (name, value) in &spec.env_vars {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(field("envVars", format!("{name:?} is not a variable's name")));
        }
        if value.contains('\0') {
            return Err(field("envVars", format!("the value of {name} holds a NUL")));
        }
    }
    match spec.env_process.contains('\0') {
        true => Err(field("envProcess", "it holds a NUL".to_owned())),
        false => Ok(()),
    }
}

fn resources(which: &str, resources: Option<&Resources>) -> Result<(), Refusal> {
    let Some(resources) = resources else { return Ok(()) };
    if let Some(text) = &resources.memory {
        quantity::memory(text).map_err(|error| field(&format!("{which}.memory"), error.to_string()))?;
    }
    if let Some(text) = &resources.cpu {
        quantity::cpu(text).map_err(|error| field(&format!("{which}.cpu"), error.to_string()))?;
    }
    match resources.pids {
        Some(0) => Err(field(&format!("{which}.pids"), "at least 1 is needed".to_owned())),
        _ => Ok(()),
    }
}

fn secrets(model: &Model, spec: &FunctionSpec) -> Result<(), Refusal> {
    let mut missing = Vec::new();
    for text in spec.needed_secrets() {
        let name: SecretName = text.parse().map_err(|error| field("secrets", format!("{error}")))?;
        let id = SecretId { namespace: spec.namespace.clone(), name };
        if !model.secrets.contains_key(&id) {
            missing.push(text);
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Refusal::SecretsMissing(spec.namespace.clone(), missing.join(", "))),
    }
}

fn field(name: &str, why: String) -> Refusal {
    Refusal::Field(name.to_owned(), why)
}
