//! Checks the imports between the files of each crate against `layers.toml`: circles, and arrows
//! that run upwards.
//!
//! An arrow goes from a file to the file that *defines* what it uses. Re-exports are followed to
//! the definition, so a `mod.rs` that only re-exports its children imports none of them. A `mod.rs`
//! imports a child when its own code uses the child, also by a re-exported name. A child is a part
//! of its parent: that it uses what the parent defines is no arrow. Code under `#[cfg(test)]` is
//! left out: tests may use anything.

mod circles;
mod modules;
mod resolve;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use modules::ModuleTree;

/// Files by the files that they import.
pub(crate) type FileGraph = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// The part of `layers.toml` that is read here.
#[derive(Deserialize)]
struct ArrowRules {
    circles: CircleBounds,
    folders: BTreeMap<String, Vec<String>>,
}

/// Bounds for circles of imports, over all crates.
#[derive(Deserialize)]
struct CircleBounds {
    max_circles: usize,
    max_files: usize,
}

/// A circle of imports in one crate.
struct Circle {
    crate_name: String,
    files: Vec<PathBuf>,
    arrows: Vec<(PathBuf, PathBuf)>,
}

impl Circle {
    fn new(crate_name: &str, files: Vec<PathBuf>, graph: &FileGraph) -> Self {
        let used = |from: &PathBuf| {
            graph
                .get(from)
                .into_iter()
                .flatten()
                .filter(|to| files.contains(to))
                .cloned()
        };
        let arrows = files
            .iter()
            .flat_map(|from| used(from).map(|to| (from.clone(), to)))
            .collect();
        Self {
            crate_name: crate_name.to_owned(),
            files,
            arrows,
        }
    }
}

impl Display for Circle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "  {}: {} files", self.crate_name, self.files.len())?;
        self.arrows
            .iter()
            .try_for_each(|(from, to)| write!(f, "\n    {} uses {}", from.display(), to.display()))
    }
}

/// Compares all crates with the rules; each violation is one fault.
pub(crate) fn check() -> Result<String, Vec<String>> {
    let (rules, crates) = read_inputs().map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    let (mut found, mut arrows) = (Vec::new(), 0);
    for (name, root) in crates
        .iter()
        .flat_map(|(name, roots)| roots.iter().map(move |root| (name, root)))
    {
        let tree = ModuleTree::read(root).map_err(|fault| vec![fault])?;
        let graph = resolve::file_graph(&tree);
        found.extend(
            circles::find(&graph)
                .into_iter()
                .map(|files| Circle::new(name, files, &graph)),
        );
        // A crate's programs have roots of their own, whose folders have no order.
        if let Some(order) = rules.folders.get(name).filter(|_| root.ends_with("lib.rs")) {
            let folders = FolderGraph::new(&graph, root.parent().unwrap_or(Path::new(".")));
            arrows += folders.arrows.len();
            faults.extend(folders.check(name, order));
        }
    }
    faults.extend(rules.circles.check(&found));
    if !faults.is_empty() {
        return Err(faults);
    }
    let list: String = found.iter().map(|circle| format!("\n{circle}")).collect();
    Ok(format!(
        "arrows: {arrows} between folders, none upwards; {} circles of imports{list}",
        found.len()
    ))
}

fn read_inputs() -> Result<(ArrowRules, BTreeMap<String, Vec<PathBuf>>), String> {
    let text =
        std::fs::read_to_string("layers.toml").map_err(|error| format!("layers.toml: {error}"))?;
    let rules = toml::from_str(&text).map_err(|error| format!("layers.toml: {error}"))?;
    Ok((rules, crate::layers::crate_roots()?))
}

impl CircleBounds {
    fn check(&self, found: &[Circle]) -> Vec<String> {
        let mut faults = Vec::new();
        if found.len() > self.max_circles {
            faults.push(format!(
                "{} circles of imports, {} are allowed:",
                found.len(),
                self.max_circles
            ));
            faults.extend(found.iter().map(Circle::to_string));
        }
        let long = found
            .iter()
            .filter(|circle| circle.files.len() > self.max_files);
        faults.extend(
            long.map(|circle| format!("a circle of more than {} files:\n{circle}", self.max_files)),
        );
        faults
    }
}

/// Arrows between the top folders of one crate, each with the files that make it.
struct FolderGraph {
    arrows: BTreeMap<(String, String), Vec<(PathBuf, PathBuf)>>,
}

impl FolderGraph {
    fn new(graph: &FileGraph, source: &Path) -> Self {
        let mut arrows: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (from, to) in graph
            .iter()
            .flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
        {
            let (Some(above), Some(below)) = (top_folder(from, source), top_folder(to, source))
            else {
                continue;
            };
            // Imports within a folder have no direction.
            if above != below {
                arrows
                    .entry((above, below))
                    .or_default()
                    .push((from.clone(), to.clone()));
            }
        }
        Self { arrows }
    }

    /// Compares the arrows with `order`, top first.
    fn check(&self, name: &str, order: &[String]) -> Vec<String> {
        let place = |folder: &String| order.iter().position(|listed| listed == folder);
        let mut faults = Vec::new();
        for ((from, to), files) in &self.arrows {
            match (place(from), place(to)) {
                // A lower position is a higher layer, so this arrow points down.
                (Some(above), Some(below)) if above < below => {}
                (Some(_), Some(_)) => {
                    // One example is enough to find the others.
                    let (user, used) = &files[0];
                    let example = format!("{} uses {}", user.display(), used.display());
                    faults.push(format!(
                        "{name}: {from} → {to} runs upwards, {} times: {example}",
                        files.len()
                    ));
                }
                (None, _) => faults.push(format!(
                    "{name}: {from} is not in the order of folders of layers.toml"
                )),
                (_, None) => faults.push(format!(
                    "{name}: {to} is not in the order of folders of layers.toml"
                )),
            }
        }
        faults
    }
}

/// Folder below `source` that contains the file, or the file's own name there; `None` for the
/// crate's root.
fn top_folder(file: &Path, source: &Path) -> Option<String> {
    let inside = file.strip_prefix(source).ok()?;
    let first = Path::new(inside.components().next()?.as_os_str());
    let name = first.file_stem()?.to_str()?;
    // The root only declares modules and re-exports.
    (!matches!(name, "lib" | "main")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(arrows: &[(&str, &str)]) -> FileGraph {
        let mut graph = FileGraph::new();
        for (from, to) in arrows {
            graph
                .entry(format!("src/{from}").into())
                .or_default()
                .insert(format!("src/{to}").into());
        }
        graph
    }

    #[test]
    fn an_arrow_against_the_order_is_a_fault() {
        let order = ["top".to_owned(), "low".to_owned()];
        let check = |arrows: &[(&str, &str)]| {
            FolderGraph::new(&graph(arrows), Path::new("src")).check("x", &order)
        };
        assert_eq!(
            check(&[
                ("top/a.rs", "low/mod.rs"),
                ("top/a.rs", "top/b.rs"),
                ("low.rs", "lib.rs")
            ]),
            [""; 0]
        );
        assert_eq!(check(&[("low/a.rs", "top.rs")]).len(), 1);
        assert_eq!(
            check(&[("other.rs", "top.rs")]).len(),
            1,
            "every folder has its place in the order"
        );
    }

    #[test]
    fn circles_have_two_bounds() {
        let circle = |files: usize| {
            let files = (0..files).map(|n| PathBuf::from(n.to_string())).collect();
            Circle::new("x", files, &FileGraph::new())
        };
        let bounds = CircleBounds {
            max_circles: 1,
            max_files: 3,
        };
        assert_eq!(bounds.check(&[circle(3)]), [""; 0]);
        assert_eq!(bounds.check(&[circle(4)]).len(), 1);
        assert_eq!(
            bounds.check(&[circle(2), circle(2)]).len(),
            3,
            "the sum, and a line for each"
        );
    }
}
