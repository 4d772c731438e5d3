//! A stack file, with substitution, aliases and all: an answer or an error with a place, never a crash.
#![no_main]

use std::io;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use nearpath_cli::stack::{Surroundings, parse};

/// A machine with one variable, one file and every folder.
struct World;

impl Surroundings for World {
    fn var(&self, name: &str) -> Option<String> {
        (name == "SET").then(|| "from-env".to_owned())
    }

    fn file(&self, _: &Path) -> io::Result<String> {
        Ok("environment:\n  A: file\n".to_owned())
    }

    fn folder(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }
}

fuzz_target!(|text: &str| {
    let (stack, report) = parse("stack.yml", text, Path::new("/stack"), &World);
    assert_eq!(stack.is_none(), report.is_fatal());
    let _ = report.to_string();
});
