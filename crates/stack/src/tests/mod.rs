//! Stack files, good and bad, in a world that is held in memory.

mod any;
mod specs;
mod troubles;

use std::io;
use std::path::{Path, PathBuf};

use crate::{Document, Parsed, Report, Stack, Surroundings, parse};

/// A world of one variable, one environment file and every folder but `./missing`.
struct World;

impl Surroundings for World {
    fn var(&self, name: &str) -> Option<String> {
        (name == "SET").then(|| "from-env".to_owned())
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("/stack/env.yml") => Ok("environment:\n  A: file\n  B: 3.10\n".into()),
            Some("/stack/bad.yml") => Ok("environment:\n  A: [1]\n".into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn folder(&self, path: &Path) -> io::Result<PathBuf> {
        let clean: PathBuf = path.components().filter(|c| c.as_os_str() != ".").collect();
        if clean.ends_with("missing") { Err(io::ErrorKind::NotFound.into()) } else { Ok(clean) }
    }
}

fn read(text: &str) -> Result<Parsed, Report> {
    parse(Document { name: "stack.yml", text, folder: Path::new("/stack") }, &World)
}

fn good(text: &str) -> Stack {
    read(text).unwrap_or_else(|report| panic!("{report}")).stack
}

/// Errors, or else warnings.
fn report(text: &str) -> Report {
    read(text).map_or_else(|report| report, |parsed| parsed.warnings)
}

/// One `LINE:COLUMN: WEIGHT: TEXT` a problem.
fn told(text: &str) -> Vec<String> {
    report(text)
        .problems
        .iter()
        .map(|p| p.to_string().lines().next().unwrap().trim_start_matches("stack.yml:").to_owned())
        .collect()
}

/// A file of functions `a`, `b`, `c` and what follows.
fn abc(more: &str) -> String {
    format!("functions:\n  a: {{image: x}}\n  b: {{image: x}}\n  c: {{image: x}}\n{more}")
}
