//! The modules of a crate: the file of each, the names that it defines and imports, and the paths
//! that its code uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::source::{Token, tokens};

/// A path as written: `crate::route::RoutingTable`.
pub(super) type UsedPath = Vec<String>;

/// The modules of a crate, by their paths from its root.
pub(super) struct ModuleTree {
    pub(super) modules: BTreeMap<Vec<String>, Module>,
}

/// One module.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// The file that it is in; an inline module shares its parent's.
    pub(super) file: PathBuf,
    /// Imports by the name that they bind here, re-exports included.
    pub(super) imports: BTreeMap<String, UsedPath>,
    /// `use path::*`.
    pub(super) globs: Vec<UsedPath>,
    /// Names of functions, types, constants and the like.
    pub(super) items: BTreeSet<String>,
    /// Names in the code that may be imports.
    pub(super) names: BTreeSet<String>,
    /// Paths in the code.
    pub(super) paths: BTreeSet<UsedPath>,
}

impl ModuleTree {
    /// Reads the crate whose root file is `root`.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut tree = Self {
            modules: BTreeMap::new(),
        };
        tree.read_file(root, Vec::new())?;
        Ok(tree)
    }

    fn read_file(&mut self, file: &Path, module: Vec<String>) -> Result<(), String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let mut reader = Reader::new(tokens(&text));
        self.modules.insert(
            module.clone(),
            Module {
                file: file.to_owned(),
                ..Module::default()
            },
        );
        reader.read_module(self, &module, file);
        for child in reader.files {
            let name = child.last().map_or("", String::as_str).to_owned();
            if let Some(file) = child_file(file, &module, &child, &name) {
                self.read_file(&file, child)?;
            }
        }
        Ok(())
    }
}

/// File of a child module. `a.rs` and `a/mod.rs` have their children in the folder `a`; a root has
/// them beside it. `None`: a `#[path]` names another file.
fn child_file(parent: &Path, module: &[String], child: &[String], name: &str) -> Option<PathBuf> {
    let beside = parent.parent().unwrap_or(Path::new("."));
    let is_root = module.is_empty() || parent.ends_with("mod.rs");
    let mut folder = if is_root {
        beside.to_owned()
    } else {
        parent.with_extension("")
    };
    folder.extend(&child[module.len()..child.len() - 1]); // inline modules add folders
    let candidates = [
        folder.join(format!("{name}.rs")),
        folder.join(name).join("mod.rs"),
    ];
    candidates.into_iter().find(|file| file.exists())
}

/// Reads one file's tokens.
struct Reader {
    tokens: Vec<Token>,
    at: usize,
    /// Modules in files of their own.
    files: Vec<Vec<String>>,
}

impl Reader {
    fn new(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            at: 0,
            files: Vec::new(),
        }
    }

    fn sign(&self, at: usize) -> Option<char> {
        match self.tokens.get(at) {
            Some(Token::Sign(sign)) => Some(*sign),
            _ => None,
        }
    }

    fn word(&self, at: usize) -> Option<&str> {
        match self.tokens.get(at) {
            Some(Token::Name(name)) => Some(name),
            _ => None,
        }
    }

    /// Reads to the end of the module: its closing brace, or the end of the file.
    fn read_module(&mut self, tree: &mut ModuleTree, module: &[String], file: &Path) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            // Tests may use anything, so their items are left out.
            if self.sign(self.at) == Some('#') && self.is_test_attribute() {
                self.skip_item();
                continue;
            }
            match self.sign(self.at) {
                Some('{') => depth += 1,
                // The closing brace of an inline module.
                Some('}') if depth == 0 => return,
                Some('}') => depth -= 1,
                _ => {}
            }
            if self.word(self.at) == Some("mod") && depth == 0 && self.read_mod(tree, module, file)
            {
                continue;
            }
            let here = tree
                .modules
                .get_mut(module)
                .expect("it was inserted before it is read");
            // `use<'a>` is a bound of an opaque type, not an import.
            if self.word(self.at) == Some("use") && !matches!(self.sign(self.at + 1), Some('<')) {
                self.at += 1;
                self.read_use(here, Vec::new());
                continue;
            }
            self.read_code(here, depth);
        }
    }

    /// Reads `mod name;` or `mod name { … }`.
    fn read_mod(&mut self, tree: &mut ModuleTree, module: &[String], file: &Path) -> bool {
        let Some(name) = self.word(self.at + 1).map(str::to_owned) else {
            return false;
        };
        let child = [module, &[name]].concat();
        match self.sign(self.at + 2) {
            Some(';') => {
                self.at += 3;
                self.files.push(child);
            }
            Some('{') => {
                self.at += 3;
                tree.modules.insert(
                    child.clone(),
                    Module {
                        file: file.to_owned(),
                        ..Module::default()
                    },
                );
                self.read_module(tree, &child, file);
                self.at += 1;
            }
            _ => return false,
        }
        true
    }

    /// Returns true at `#[cfg(test)]` and `#[cfg(all(test, …))]`.
    fn is_test_attribute(&self) -> bool {
        let cfg = self.sign(self.at + 1) == Some('[') && self.word(self.at + 2) == Some("cfg");
        let test = |at| self.word(at) == Some("test");
        cfg && (test(self.at + 4) || self.word(self.at + 4) == Some("all") && test(self.at + 6))
    }

    /// Skips an attribute and the item that it is on.
    fn skip_item(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            let sign = self.sign(self.at);
            self.at += 1;
            match sign {
                Some('{' | '(' | '[') => depth += 1,
                Some(')' | ']') => depth -= 1,
                Some('}') => {
                    depth -= 1;
                    if depth == 0 {
                        return;
                    }
                }
                Some(';' | ',') if depth == 0 => return,
                _ => {}
            }
            if depth < 0 {
                self.at -= 1; // belongs to the item's surroundings
                return;
            }
        }
    }

    /// Reads a tree of imports: `a::{b, c::{self, d as e}, f::*}`.
    fn read_use(&mut self, here: &mut Module, prefix: UsedPath) {
        let mut path = prefix.clone();
        while let Some(token) = self.tokens.get(self.at).cloned() {
            self.at += 1;
            match token {
                Token::Name(name) if name == "as" => {
                    let alias = self.word(self.at).unwrap_or("_").to_owned();
                    self.at += 1;
                    bind(here, alias, std::mem::replace(&mut path, prefix.clone()));
                }
                Token::Name(name) => path.push(name),
                Token::Path => {}
                Token::Sign('*') => here
                    .globs
                    .push(std::mem::replace(&mut path, prefix.clone())),
                Token::Sign('{') => {
                    // The group's entries share the path before the brace.
                    self.read_use(here, path.clone());
                    path.clone_from(&prefix);
                }
                Token::Sign(end @ (',' | '}' | ';')) => {
                    // After a group or a glob the path is empty again.
                    if path.len() > prefix.len() {
                        let name = path
                            .iter()
                            .rev()
                            .find(|name| *name != "self")
                            .cloned()
                            .unwrap_or_default();
                        bind(here, name, std::mem::replace(&mut path, prefix.clone()));
                    }
                    if end != ',' {
                        return;
                    }
                }
                Token::Sign(_) => {}
            }
        }
    }

    /// Reads one token of code, or a whole path.
    fn read_code(&mut self, here: &mut Module, depth: i32) {
        let Some(first) = self.word(self.at).map(str::to_owned) else {
            self.at += 1;
            return;
        };
        let defines = matches!(
            first.as_str(),
            "fn" | "struct"
                | "enum"
                | "trait"
                | "type"
                | "const"
                | "static"
                | "union"
                | "macro_rules"
        );
        if defines && depth == 0 {
            let name = self.tokens[self.at..]
                .iter()
                .skip(1)
                .find_map(|token| match token {
                    Token::Name(name) if name != "mut" => Some(name.clone()),
                    _ => None,
                });
            // Only items at the top level can be imported.
            here.items.extend(name);
        }
        // A field or method after a single dot; two dots are a range.
        let is_field = self.at > 0
            && self.sign(self.at - 1) == Some('.')
            && self.sign(self.at.wrapping_sub(2)) != Some('.');
        let mut path = vec![first];
        self.at += 1;
        while self.tokens.get(self.at) == Some(&Token::Path) {
            let Some(next) = self.word(self.at + 1) else {
                break;
            };
            path.push(next.to_owned());
            self.at += 2;
        }
        if !is_field {
            here.names.insert(path[0].clone());
            if path.len() > 1 {
                here.paths.insert(path);
            }
        }
    }
}

fn bind(here: &mut Module, name: String, mut path: UsedPath) {
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    // an unnamed trait import counts as used
    let name = if name == "_" { path.join("::") } else { name };
    here.imports.insert(name, path);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ModuleTree {
        let mut tree = ModuleTree {
            modules: BTreeMap::from([(Vec::new(), Module::default())]),
        };
        Reader::new(tokens(text)).read_module(&mut tree, &[], Path::new("lib.rs"));
        tree
    }

    #[test]
    fn imports_are_bound_to_their_names() {
        let tree = read(
            "use a::{self, b, c::{d as e, f::*}}; pub(crate) use crate::g; #[cfg(test)] use h::i; fn x() { use j::k; }",
        );
        let root = &tree.modules[&Vec::new()];
        let shown: Vec<_> = root
            .imports
            .iter()
            .map(|(name, path)| format!("{name}={}", path.join(".")))
            .collect();
        assert_eq!(shown, ["a=a", "b=a.b", "e=a.c.d", "g=crate.g", "k=j.k"]);
        assert_eq!(root.globs, [["a", "c", "f"]]);
        assert!(root.items.contains("x"));
    }

    #[test]
    fn tests_are_left_out_and_inline_modules_are_modules() {
        let tree = read(
            "mod inner { fn y() { super::z() } } #[cfg(test)] mod tests { fn t() { crate::u() } } fn v() { crate::w::x(); a.b }",
        );
        assert_eq!(tree.modules.len(), 2);
        assert_eq!(tree.modules[&vec!["inner".to_owned()]].paths.len(), 1);
        let root = &tree.modules[&Vec::new()];
        assert_eq!(
            root.paths,
            BTreeSet::from([vec!["crate".to_owned(), "w".to_owned(), "x".to_owned()]])
        );
        assert!(
            root.names.contains("a") && !root.names.contains("b"),
            "a field is no name"
        );
    }
}
