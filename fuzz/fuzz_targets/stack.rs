//! A stack file, with substitution, aliases and all, and the same text as a list of nodes: an answer
//! or an error with a place, never a crash.
#![no_main]

use std::io;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use nearpath_stack::{StackContext, StackDocument, parse_nodes, parse_stack};

/// A machine with one variable, one file and every folder.
struct World;

impl StackContext for World {
    fn env_variable(&self, name: &str) -> Option<String> {
        (name == "SET").then(|| "from-env".to_owned())
    }

    fn read_file(&self, _: &Path) -> io::Result<String> {
        Ok("environment:\n  A: file\n".to_owned())
    }

    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }
}

fuzz_target!(|text: &str| {
    let document = StackDocument {
        name: "stack.yml",
        text,
        folder: Path::new("/stack"),
    };
    let parsed = parse_stack(document, &World);
    let (sound, report) = match parsed {
        Ok(parsed) => (true, parsed.warnings),
        Err(report) => (false, report),
    };
    assert_eq!(sound, !report.has_errors());
    let _ = report.to_string();
    if let Err(report) = parse_nodes(document) {
        assert!(report.has_errors());
    }
});
