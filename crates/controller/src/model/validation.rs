//! Normalization and validation of a spec: everything that can be known at deploy time is reported at
//! deploy time.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use nearpath_types::{FunctionPolicy, FunctionSpec, InstanceResources, quantity};

use super::{CommandRefusal, ControllerModel, SecretId, SecretName};

/// Removes settings without meaning: empty quantities, which some clients send for none, and
/// secrets that are named twice.
pub(super) fn normalize_spec(spec: &FunctionSpec) -> FunctionSpec {
    let mut spec = spec.clone();
    for resources in [&mut spec.limits, &mut spec.requests].into_iter().flatten() {
        resources.memory.take_if(|text| text.is_empty());
        resources.cpu.take_if(|text| text.is_empty());
    }
    let mut seen = BTreeSet::new();
    spec.secrets.retain(|name| seen.insert(name.clone()));
    spec
}

/// Normalizes a spec that others hold, too. A spec that is normal already stays shared: a source
/// declares thousands of them.
pub(super) fn normalize_shared(spec: &Arc<FunctionSpec>) -> Arc<FunctionSpec> {
    let normal = normalize_spec(spec);
    match normal == **spec {
        true => Arc::clone(spec),
        false => Arc::new(normal),
    }
}

/// Checks a spec against the rules and the model, and returns its settings.
pub(super) fn validate_spec(
    model: &ControllerModel,
    spec: &FunctionSpec,
) -> Result<FunctionPolicy, CommandRefusal> {
    if !model.has_namespace(&spec.namespace) {
        return Err(CommandRefusal::UnknownNamespace(spec.namespace.clone()));
    }
    let policy = check_fields(spec)?;
    check_secrets(model, spec)?;
    Ok(policy)
}

/// Checks a spec against the rules alone, and returns its settings.
pub(super) fn check_fields(spec: &FunctionSpec) -> Result<FunctionPolicy, CommandRefusal> {
    check_image(&spec.image)?;
    check_environment(spec)?;
    check_resources("limits", spec.limits.as_ref())?;
    check_resources("requests", spec.requests.as_ref())?;
    secret_ids(spec)?;
    Ok(FunctionPolicy::from_spec(spec)?)
}

/// Accepts folders only, because there is no image store. An error here beats an instance that
/// never starts.
fn check_image(image: &str) -> Result<(), CommandRefusal> {
    let hint = "write file:///ABSOLUTE/FOLDER, a folder on the node";
    match image.strip_prefix("file://") {
        _ if image.is_empty() => Err(invalid_field("image", format!("missing: {hint}"))),
        None => Err(invalid_field(
            "image",
            format!("{image:?}: images from a registry cannot be run yet: {hint}"),
        )),
        Some(path) if !path.starts_with('/') => Err(invalid_field(
            "image",
            format!("{image:?} is not absolute: {hint}"),
        )),
        // `..` could leave the checked prefix again, and the kernel ends a path at NUL.
        Some(path) if path.contains('\0') || path.split('/').any(|part| part == "..") => Err(
            invalid_field("image", format!("{image:?} contains `..` or a NUL: {hint}")),
        ),
        Some(path)
            // Kernel file systems: as a function's folder they would expose the node's devices and
            // processes.
            if ["/proc", "/sys", "/dev"]
                .iter()
                .any(|root| Path::new(path).starts_with(root)) =>
        {
            Err(invalid_field(
                "image",
                format!("{image:?} is a kernel file system, not a function's folder: {hint}"),
            ))
        }
        Some("/") => Err(invalid_field(
            "image",
            format!("{image:?} is the root folder of the machine: {hint}"),
        )),
        Some(_) => Ok(()),
    }
}

/// Refuses names and values that no process can be started with.
fn check_environment(spec: &FunctionSpec) -> Result<(), CommandRefusal> {
    for (name, value) in &spec.env_vars {
        // execve(2) takes `NAME=VALUE` texts that end with NUL.
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(invalid_field(
                "envVars",
                format!("{name:?} is not a variable's name"),
            ));
        }
        if value.contains('\0') {
            return Err(invalid_field(
                "envVars",
                format!("the value of {name} contains a NUL"),
            ));
        }
    }
    match spec.env_process.contains('\0') {
        true => Err(invalid_field("envProcess", "contains a NUL".to_owned())),
        false => Ok(()),
    }
}

fn check_resources(
    field: &str,
    resources: Option<&InstanceResources>,
) -> Result<(), CommandRefusal> {
    let Some(resources) = resources else {
        return Ok(());
    };
    if let Some(text) = &resources.memory {
        quantity::parse_memory(text)
            .map_err(|error| invalid_field(&format!("{field}.memory"), error.to_string()))?;
    }
    if let Some(text) = &resources.cpu {
        quantity::parse_cpu(text)
            .map_err(|error| invalid_field(&format!("{field}.cpu"), error.to_string()))?;
    }
    match resources.pids {
        // A limit of 0 processes would stop the watchdog itself.
        Some(0) => Err(invalid_field(
            &format!("{field}.pids"),
            "must be at least 1".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Refuses a spec that needs secrets which do not exist.
pub(super) fn check_secrets(
    model: &ControllerModel,
    spec: &FunctionSpec,
) -> Result<(), CommandRefusal> {
    let missing: Vec<_> = secret_ids(spec)?
        .into_iter()
        .filter(|id| !model.secrets.contains_key(id))
        .map(|id| id.name.to_string())
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(CommandRefusal::UnknownSecrets(
            spec.namespace.clone(),
            missing.join(", "),
        )),
    }
}

fn secret_ids(spec: &FunctionSpec) -> Result<Vec<SecretId>, CommandRefusal> {
    let names = spec.needed_secrets();
    let id = |text: &String| {
        let name: SecretName = text
            .parse()
            .map_err(|error| invalid_field("secrets", format!("{error}")))?;
        Ok(SecretId {
            namespace: spec.namespace.clone(),
            name,
        })
    };
    names.iter().map(id).collect()
}

fn invalid_field(name: &str, why: String) -> CommandRefusal {
    CommandRefusal::InvalidField(name.to_owned(), why)
}
