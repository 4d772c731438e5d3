//! Checks folders that decide without I/O against the section `pure` of `layers.toml`.
//!
//! A crate boundary keeps sockets out of a state machine; inside a crate only this check does. It
//! reads text, not syntax: it finds names that a file spells out, but not those that a macro
//! creates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folder or file to the modules of its own crate that it may use.
pub(crate) type PureFolders = BTreeMap<String, BTreeSet<String>>;

/// Sockets, files, clocks, threads and sources of chance. `Instant` and `SocketAddr` as values are
/// fine.
const FORBIDDEN: [&str; 15] = [
    "tokio",
    "nix",
    "rustix",
    "fastrand",
    "SystemRandom",
    "SystemTime",
    "Instant::now",
    "elapsed",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "std::env",
    "std::fs",
    "std::process",
    "std::thread",
];

/// Every name that a pure folder may not use is one fault.
pub(crate) fn check(folders: &PureFolders) -> Vec<String> {
    folders
        .iter()
        .flat_map(|(folder, may_use)| check_folder(Path::new(folder), may_use))
        .collect()
}

fn check_folder(folder: &Path, may_use: &BTreeSet<String>) -> Vec<String> {
    match source_files(folder) {
        Ok(files) => files
            .iter()
            .flat_map(|(file, code)| faults_of(file, code, may_use))
            .collect(),
        Err(error) => vec![format!(
            "{}: {error}: correct the section `pure` of layers.toml",
            folder.display()
        )],
    }
}

/// Reads all source files except tests.
fn source_files(path: &Path) -> std::io::Result<Vec<(PathBuf, Code)>> {
    if path.is_file() {
        return Ok(vec![(
            path.to_owned(),
            Code::of(&fs::read_to_string(path)?),
        )]);
    }
    let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<std::io::Result<Vec<_>>>()?;
    // The order of directory entries is arbitrary; faults should be stable.
    paths.sort();
    // Only `mod.rs` tells which files are test modules.
    let code = Code::of(&fs::read_to_string(path.join("mod.rs"))?);
    let is_test = |path: &Path| {
        path.file_stem()
            .is_some_and(|name| code.test_modules.contains(&*name.to_string_lossy()))
    };
    let mut files = Vec::new();
    for path in paths.iter().filter(|path| !is_test(path)) {
        files.extend(source_files(path)?);
    }
    Ok(files)
}

/// Code of a file that is compiled outside tests, without comments.
#[derive(Debug, Default)]
struct Code {
    lines: Vec<String>,
    test_modules: BTreeSet<String>,
}

impl Code {
    fn of(text: &str) -> Self {
        let mut code = Self::default();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            // rustfmt puts the attribute on a line of its own.
            if line.trim() != "#[cfg(test)]" {
                code.lines
                    // A comment may name a socket; `//` inside a string cuts the line, which is
                    // harmless here.
                    .push(line.split("//").next().unwrap_or_default().to_owned());
                continue;
            }
            let module = lines
                .next()
                .and_then(|next| next.trim().strip_prefix("mod ")?.strip_suffix(';'));
            let Some(module) = module else { break }; // inline tests end a file
            code.test_modules.insert(module.to_owned());
            code.lines.extend([String::new(), String::new()]); // keeps the line numbers below
        }
        code
    }
}

fn faults_of(file: &Path, code: &Code, may_use: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, line) in code.lines.iter().enumerate() {
        let place = format!("{}:{}", file.display(), at + 1);
        let forbidden = FORBIDDEN
            .iter()
            .filter(|name| names(line, name).next().is_some());
        faults.extend(
            forbidden
                .map(|name| format!("{place} uses {name}: a pure folder takes it as an argument")),
        );
        let modules = names(line, "crate::").map(str::to_owned);
        let strange =
            modules.filter(|module| !may_use.iter().any(|allowed| module.starts_with(&**allowed)));
        faults.extend(strange.map(|module| {
            format!("{place} uses crate::{module}, which layers.toml does not allow")
        }));
    }
    faults
}

/// Yields the text after each occurrence of `name` that is not part of a longer identifier.
fn names<'a>(line: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(name).filter_map(move |(at, _)| {
        let (before, rest) = (&line[..at], &line[at + name.len()..]);
        // A path prefix is always followed by a name.
        let continues = rest.starts_with(is_part) && !name.ends_with("::");
        (!before.ends_with(is_part) && !continues).then_some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str, may_use: &[&str]) -> Vec<String> {
        let may_use = may_use.iter().map(|module| (*module).to_owned()).collect();
        faults_of(Path::new("a.rs"), &Code::of(text), &may_use)
    }

    #[test]
    fn sockets_clocks_and_other_modules_are_found() {
        assert_eq!(
            faults(
                "use std::net::SocketAddr;\nuse std::time::Instant;\nlet tokio_like = 1;",
                &[]
            )
            .len(),
            0
        );
        assert_eq!(
            faults("use std::net::UdpSocket;\nlet now = Instant::now();", &[]).len(),
            2
        );
        assert_eq!(faults("let age = begun.elapsed();", &[]).len(), 1);
        assert_eq!(faults("use crate::punch::Agent;", &["punch"]).len(), 0);
        assert_eq!(faults("use crate::driver::Driver;", &["punch"]).len(), 1);
    }

    #[test]
    fn comments_and_tests_are_free() {
        let text = "//! See tokio.\nfn f() {} // not Instant::now\n#[cfg(test)]\nmod late;\nfn g() {}\n#[cfg(test)]\nmod tests {\nuse tokio;\n}";
        let code = Code::of(text);
        assert!(faults(text, &[]).is_empty());
        assert_eq!(
            (code.test_modules.contains("late"), code.lines.len()),
            (true, 5)
        );
    }
}
