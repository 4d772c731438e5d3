//! Resolves paths to the files with their definitions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::FileGraph;
use super::modules::{Module, ModuleTree};

/// Maximum length of a chain of re-exports. A longer one is a circle, which no compiler accepts.
const MAX_REEXPORTS: usize = 16;

/// The imports between the files of a crate.
pub(super) fn file_graph(tree: &ModuleTree) -> FileGraph {
    let mut graph = FileGraph::new();
    for (path, module) in &tree.modules {
        let used = graph.entry(module.file.clone()).or_default();
        // A part and its parent form a unit, so a child's use of its parent is no arrow.
        let counts = |file: &PathBuf| *file != module.file && !is_part(&module.file, file);
        used.extend(used_files(tree, path, module).into_iter().filter(counts));
    }
    graph
}

/// Returns true if `file` is in the folder of the module `parent`: `a/mod.rs` and `a.rs` have
/// theirs in `a`.
fn is_part(file: &Path, parent: &Path) -> bool {
    let owns_folder = parent
        .file_stem()
        .is_some_and(|stem| matches!(stem.to_str(), Some("mod" | "lib" | "main")));
    let folder = if owns_folder {
        parent.parent().map(Path::to_owned)
    } else {
        Some(parent.with_extension(""))
    };
    folder.is_some_and(|folder| file.starts_with(folder))
}

fn used_files(tree: &ModuleTree, at: &[String], module: &Module) -> BTreeSet<PathBuf> {
    // An import counts where its name is used: re-exports alone, and modules alone, are none.
    let used = module
        .imports
        .iter()
        // Trait imports without a name are kept under their path, see `bind`.
        .filter(|(name, _)| module.names.contains(*name) || name.contains("::"));
    let imports = used.map(|(_, path)| path);
    let all = imports.chain(&module.globs).chain(&module.paths);
    all.filter_map(|path| definition(tree, at, path, 0))
        .collect()
}

/// File with the definition of `path` as seen from the module `at`; `None` for other crates, and
/// for modules as such.
fn definition(tree: &ModuleTree, at: &[String], path: &[String], depth: usize) -> Option<PathBuf> {
    if depth > MAX_REEXPORTS {
        return None;
    }
    let (mut module, mut rest) = start(tree, at, path)?;
    while let Some((name, tail)) = rest.split_first() {
        let here = tree.modules.get(&module)?;
        let child = [&module[..], std::slice::from_ref(name)].concat();
        if tree.modules.contains_key(&child) && !here.items.contains(name)
            || tail.is_empty() && tree.modules.contains_key(&child)
        {
            (module, rest) = (child, tail);
            continue;
        }
        // A re-export: the definition is where the import leads.
        if let Some(import) = here.imports.get(name) {
            let whole = [&import[..], tail].concat();
            return definition(tree, &module, &whole, depth + 1);
        }
        if here.items.contains(name) {
            return Some(here.file.clone());
        }
        // Globs come last, as in Rust's own name resolution.
        let from_glob = here.globs.iter().find_map(|glob| {
            let whole = [&glob[..], rest].concat();
            definition(tree, &module, &whole, depth + 1).filter(|file| *file != here.file)
        });
        return from_glob.or_else(|| Some(here.file.clone()));
    }
    None
}

/// The module that a path begins in, and the rest of it.
fn start<'a>(
    tree: &ModuleTree,
    at: &[String],
    path: &'a [String],
) -> Option<(Vec<String>, &'a [String])> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some((Vec::new(), rest)),
        "self" => Some((at.to_vec(), rest)),
        "super" => {
            let (mut module, mut rest) = (at[..at.len().checked_sub(1)?].to_vec(), rest);
            while let Some(("super", tail)) =
                rest.split_first().map(|(name, tail)| (name.as_str(), tail))
            {
                module.pop()?;
                rest = tail;
            }
            Some((module, rest))
        }
        name => {
            let here = tree.modules.get(at)?;
            let child = [at, std::slice::from_ref(first)].concat();
            // A first name that is neither a module nor an import belongs to another crate.
            let known = tree.modules.contains_key(&child)
                || here.imports.get(name).is_some_and(|import| import != path);
            known.then(|| (at.to_vec(), path))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn module(
        file: &str,
        imports: &[(&str, &str)],
        items: &[&str],
        names: &[&str],
        paths: &[&str],
    ) -> Module {
        let split = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
        Module {
            file: file.into(),
            imports: imports
                .iter()
                .map(|(name, path)| (name.to_string(), split(path)))
                .collect(),
            items: items.iter().map(|item| item.to_string()).collect(),
            names: names.iter().map(|name| name.to_string()).collect(),
            paths: paths.iter().map(|path| split(path)).collect(),
            ..Module::default()
        }
    }

    fn arrows(modules: &[(&str, Module)]) -> Vec<String> {
        let path = |text: &str| {
            text.split("::")
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let modules = modules.iter().map(|(at, module)| {
            let Module {
                file,
                imports,
                globs,
                items,
                names,
                paths,
            } = module;
            let copy = Module {
                file: file.clone(),
                imports: imports.clone(),
                globs: globs.clone(),
                items: items.clone(),
                names: names.clone(),
                paths: paths.clone(),
            };
            (path(at), copy)
        });
        let graph = file_graph(&ModuleTree {
            modules: modules.collect::<BTreeMap<_, _>>(),
        });
        let shown = graph.iter().flat_map(|(from, all)| {
            all.iter()
                .map(move |to| format!("{}→{}", from.display(), to.display()))
        });
        shown.collect()
    }

    #[test]
    fn a_re_export_leads_to_the_definition_and_is_no_import() {
        let modules = [
            ("", module("lib", &[], &[], &[], &[])),
            ("a", module("a", &[("Gate", "gate::Gate")], &[], &[], &[])),
            ("a::gate", module("gate", &[], &["Gate"], &[], &[])),
            (
                "b",
                module("b", &[("Gate", "crate::a::Gate")], &[], &["Gate"], &[]),
            ),
        ];
        assert_eq!(arrows(&modules), ["b→gate"]);
    }

    #[test]
    fn a_module_that_is_imported_counts_by_what_is_used_of_it() {
        let modules = [
            ("", module("lib", &[], &[], &[], &[])),
            (
                "a",
                module("a.rs", &[("Gate", "gate::Gate")], &["open"], &["Gate"], &[]),
            ),
            (
                "a::gate",
                module("a/gate.rs", &[], &["Gate"], &[], &["super::open"]),
            ),
            (
                "b",
                module(
                    "b.rs",
                    &[("a", "super::a")],
                    &[],
                    &["a"],
                    &["a::open", "std::mem::take"],
                ),
            ),
        ];
        assert_eq!(
            arrows(&modules),
            ["a.rs→a/gate.rs", "b.rs→a.rs"],
            "a part may use what its parent defines"
        );
    }
}
