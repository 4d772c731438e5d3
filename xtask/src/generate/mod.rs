//! Writes the lists of every language from `contract/paths.toml` and `contract/reasons.toml`.

mod c;
mod contract;
mod go;
mod names;
mod node;
mod python;
mod rust;

use std::path::{Path, PathBuf};

use contract::{PathContract, ReasonContract};

/// First line of a generated file, after the language's comment sign. Go's tools recognise the
/// form.
fn banner(contract: &str) -> String {
    format!("Code generated from contract/{contract} by `cargo xtask generate`. DO NOT EDIT.")
}

/// Writes the generated files, or only compares them; each stale file is one fault.
pub(crate) fn run(root: &Path, only_compare: bool) -> Result<String, Vec<String>> {
    let files = render(root)?;
    // Current files are not written: a new time stamp would rebuild their crates.
    let stale: Vec<_> = files.iter().filter(|file| !file.is_current(root)).collect();
    // CI compares, so that a change of a contract comes with its generated files.
    if only_compare && !stale.is_empty() {
        let fault = |file: &&File| {
            format!(
                "{} is stale: run `cargo xtask generate`",
                file.path.display()
            )
        };
        return Err(stale.iter().map(fault).collect());
    }
    let written = stale
        .iter()
        .map(|file| file.write(root))
        .collect::<Result<Vec<_>, _>>();
    written.map_err(|fault| vec![fault])?;
    Ok(format!(
        "generate: {} files, {} of them changed",
        files.len(),
        stale.len()
    ))
}

/// A generated file, relative to the top folder.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    fn is_current(&self, root: &Path) -> bool {
        std::fs::read_to_string(root.join(&self.path)).is_ok_and(|text| text == self.text)
    }

    fn write(&self, root: &Path) -> Result<(), String> {
        let path = root.join(&self.path);
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder
            .and_then(|()| std::fs::write(&path, &self.text))
            .map_err(|e| format!("{}: {e}", path.display()))
    }
}

fn render(root: &Path) -> Result<Vec<File>, Vec<String>> {
    let (paths, reasons) = (PathContract::read(root)?, ReasonContract::read(root)?);
    let files = [
        ("crates/path/src/generated.rs", rust::paths(&paths)),
        (
            "crates/path/src/candidates.rs",
            rust::candidate_lists(&paths),
        ),
        ("crates/path/src/paths/mod.rs", rust::path_modules(&paths)),
        (
            "crates/types/src/reason/generated.rs",
            rust::reasons(&reasons),
        ),
        ("sdk/c/include/nearpath_paths.h", c::paths(&paths)),
        ("sdk/go/paths_generated.go", go::paths(&paths)),
        (
            "sdk/go/internal/reason/reason_generated.go",
            go::reasons(&reasons),
        ),
        ("sdk/node/lib/paths.d.ts", node::declarations(&paths)),
        ("sdk/node/lib/paths.js", node::paths(&paths)),
        ("sdk/python/nearpath/_paths.py", python::paths(&paths)),
        ("sdk/python/nearpath/_reasons.py", python::reasons(&reasons)),
    ];
    Ok(files
        .map(|(path, text)| File {
            path: path.into(),
            text,
        })
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn generated_files_are_those_of_the_contract() {
        assert_eq!(
            run(&root(), true),
            Ok("generate: 11 files, 0 of them changed".to_owned())
        );
    }

    #[test]
    fn a_stale_file_is_found_and_written_anew() {
        let root = std::env::temp_dir().join(format!("nearpath-xtask-{}", std::process::id()));
        let file = File {
            path: "folder/list.txt".into(),
            text: "new".to_owned(),
        };
        assert!(!file.is_current(&root));
        file.write(&root).unwrap();
        assert!(file.is_current(&root));
        assert!(
            !File {
                text: "newer".to_owned(),
                ..file
            }
            .is_current(&root)
        );
        std::fs::remove_dir_all(root).unwrap();
    }
}
