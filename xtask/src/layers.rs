//! Checks the dependency graph against `layers.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::purity::{self, PureFolders};

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Rules of `layers.toml`.
#[derive(Deserialize)]
struct Rule {
    may_use: Arrows,
    must_not_use: Arrows,
    pure: PureFolders,
}

/// The used part of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `None` for an ordinary dependency, else `dev` or `build`.
    kind: Option<String>,
    optional: bool,
}

/// Compares the graph with the rule; every difference is one fault.
pub(crate) fn check() -> Result<String, Vec<String>> {
    let read = || -> Result<(Rule, Metadata), String> { Ok((rule()?, metadata()?)) };
    let (rule, metadata) = read().map_err(|fault| vec![fault])?;
    let graph = graph(&metadata);
    // Only crates of the workspace have layers; others are covered by `must_not_use`.
    let ours: BTreeSet<&str> = members(&metadata)
        .map(|package| package.name.as_str())
        .collect();
    let mut faults = arrows_up(&rule.may_use, &graph, &ours);
    faults.extend(forbidden(&rule.must_not_use, &graph));
    faults.extend(purity::check(&rule.pure));
    if faults.is_empty() {
        Ok(format!("layers: {} crates keep to layers.toml", ours.len()))
    } else {
        Err(faults)
    }
}

/// The root files of the libraries and programs of each of our crates, relative to the top folder.
pub(crate) fn crate_roots() -> Result<BTreeMap<String, Vec<PathBuf>>, String> {
    let (metadata, top) = (
        metadata()?,
        std::env::current_dir().map_err(|error| error.to_string())?,
    );
    let is_code = |target: &&Target| {
        target
            .kind
            .iter()
            // `ends_with` covers `lib`, `cdylib`, `rlib` and `staticlib`.
            .any(|kind| kind == "bin" || kind.ends_with("lib"))
    };
    let roots = |package: &Package| {
        let files = package
            .targets
            .iter()
            .filter(is_code)
            .map(|target| &target.src_path);
        files
            // `cargo metadata` prints absolute paths; faults show relative ones.
            .map(|file| file.strip_prefix(&top).unwrap_or(file).to_owned())
            .collect()
    };
    Ok(members(&metadata)
        .map(|package| (package.name.clone(), roots(package)))
        .collect())
}

fn rule() -> Result<Rule, String> {
    let text = std::fs::read_to_string("layers.toml")
        .map_err(|e| format!("layers.toml: {e} (run from the top folder)"))?;
    toml::from_str(&text).map_err(|e| format!("layers.toml: {e}"))
}

fn metadata() -> Result<Metadata, String> {
    // Set by `cargo xtask`: the same toolchain as the caller's.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let out = Command::new(cargo)
        // `--locked`: a check must not change Cargo.lock.
        .args(["metadata", "--format-version", "1", "--locked"])
        .output();
    let out = out.map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        ));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn members(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata
        .packages
        .iter()
        .filter(|package| metadata.workspace_members.contains(&package.id))
}

/// Ordinary and build dependencies; optional ones are counted only where they are ours.
fn graph(metadata: &Metadata) -> Arrows {
    let used = |package: &Package| {
        let counted = package
            .dependencies
            .iter()
            // Tests may use anything, and optional dependencies are not built by default.
            .filter(|d| d.kind.as_deref() != Some("dev") && !d.optional);
        counted.map(|dependency| dependency.name.clone()).collect()
    };
    metadata
        .packages
        .iter()
        .map(|package| (package.name.clone(), used(package)))
        .collect()
}

fn arrows_up(allowed: &Arrows, graph: &Arrows, ours: &BTreeSet<&str>) -> Vec<String> {
    let mut faults = Vec::new();
    for name in ours {
        // A new crate needs an explicit decision about its layer.
        let Some(allowed) = allowed.get(*name) else {
            faults.push(format!("{name} is not in layers.toml: say what it may use"));
            continue;
        };
        let used = graph[*name]
            .iter()
            .filter(|used| ours.contains(used.as_str()) && !allowed.contains(*used));
        faults.extend(
            used.map(|used| format!("{name} uses {used}, which layers.toml does not allow")),
        );
    }
    faults
}

fn forbidden(rule: &Arrows, graph: &Arrows) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, banned) in rule {
        let reached = reach(name, graph);
        faults.extend(
            banned
                .intersection(&reached)
                .map(|found| format!("{name} reaches {found}, which layers.toml forbids")),
        );
    }
    faults
}

/// Everything that `from` depends on, directly or not.
fn reach(from: &str, graph: &Arrows) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut todo = vec![from.to_owned()];
    while let Some(name) = todo.pop() {
        for next in graph.get(&name).into_iter().flatten() {
            if found.insert(next.clone()) {
                todo.push(next.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(pairs: &[(&str, &[&str])]) -> Arrows {
        pairs
            .iter()
            .map(|(from, to)| {
                (
                    (*from).to_owned(),
                    to.iter().map(|t| (*t).to_owned()).collect(),
                )
            })
            .collect()
    }

    #[test]
    fn an_arrow_that_goes_up_is_found() {
        let graph = arrows(&[("low", &["high"]), ("high", &[])]);
        let ours = BTreeSet::from(["low", "high"]);
        assert_eq!(
            arrows_up(&arrows(&[("low", &[]), ("high", &["low"])]), &graph, &ours).len(),
            1
        );
        assert!(arrows_up(&arrows(&[("low", &["high"]), ("high", &[])]), &graph, &ours).is_empty());
        assert_eq!(
            arrows_up(&arrows(&[("low", &["high"])]), &graph, &ours).len(),
            1,
            "an unlisted crate is a fault"
        );
    }

    #[test]
    fn a_banned_crate_is_found_through_another() {
        let graph = arrows(&[("ours", &["middle"]), ("middle", &["tokio"])]);
        assert_eq!(forbidden(&arrows(&[("ours", &["tokio"])]), &graph).len(), 1);
        assert!(forbidden(&arrows(&[("ours", &["hyper"])]), &graph).is_empty());
    }
}
