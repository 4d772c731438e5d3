//! Secrets of a folder: `NAMESPACE/NAME`, or `NAME` for the default namespace.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nearpath_controller::{SecretId, SecretValue};
use nearpath_types::Namespace;

/// Largest secret, as in the API.
const MAX_SECRET_BYTES: u64 = 1 << 20;

/// Returns the files that may hold a secret; the first one that exists does.
pub(crate) fn secret_paths(folder: &Path, id: &SecretId) -> Vec<PathBuf> {
    let name = id.name.as_str();
    let with_namespace = folder.join(id.namespace.as_str()).join(name);
    match id.namespace == Namespace::default() {
        true => vec![folder.join(name), with_namespace],
        false => vec![with_namespace],
    }
}

/// Reads a secret. The error names the file, never the content.
pub(crate) fn read_secret(paths: &[PathBuf]) -> Result<SecretValue, String> {
    for path in paths {
        match read_bounded(path) {
            Ok(content) if content.is_empty() => {
                return Err(format!(
                    "{} is empty: write the secret to it",
                    path.display()
                ));
            }
            Ok(content) => return Ok(SecretValue(content.into())),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    let first = paths.first().map(|path| path.display().to_string());
    Err(format!(
        "it is missing: write it to {}",
        first.unwrap_or_default()
    ))
}

fn is_missing(error: &io::Error) -> bool {
    // A namespace may have the name of a secret.
    [
        io::ErrorKind::NotFound,
        io::ErrorKind::NotADirectory,
        io::ErrorKind::IsADirectory,
    ]
    .contains(&error.kind())
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?
        .take(MAX_SECRET_BYTES + 1)
        .read_to_end(&mut content)?;
    match content.len() as u64 > MAX_SECRET_BYTES {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {} KiB", MAX_SECRET_BYTES >> 10),
        )),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(folder: &Path, id: &str) -> Result<Vec<u8>, String> {
        let value = read_secret(&secret_paths(folder, &id.parse().unwrap()))?;
        Ok(value.0.to_vec())
    }

    #[test]
    fn a_secret_is_in_its_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("dev")).unwrap();
        fs::write(at("dev/key"), "of dev").unwrap();
        assert_eq!(read(folder.path(), "dev/key").unwrap(), b"of dev");
        let missing = read(folder.path(), "openfaas-fn/key").unwrap_err();
        let wanted = format!("it is missing: write it to {}", at("key").display());
        assert_eq!(missing, wanted);
        fs::create_dir(at("openfaas-fn")).unwrap();
        fs::write(at("openfaas-fn/key"), "longer name").unwrap();
        assert_eq!(
            read(folder.path(), "openfaas-fn/key").unwrap(),
            b"longer name"
        );
        fs::write(at("key"), "short name").unwrap();
        assert_eq!(
            read(folder.path(), "openfaas-fn/key").unwrap(),
            b"short name"
        );
        assert!(read(folder.path(), "openfaas-fn/dev").is_err(), "a folder");
    }

    #[test]
    fn a_secret_has_some_bytes_and_not_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "").unwrap();
        let empty = read(folder.path(), "openfaas-fn/key").unwrap_err();
        assert!(
            empty.ends_with("key is empty: write the secret to it"),
            "{empty}"
        );
        fs::write(&path, vec![b'x'; (1 << 20) + 1]).unwrap();
        let large = read(folder.path(), "openfaas-fn/key").unwrap_err();
        assert!(large.ends_with("larger than 1024 KiB"), "{large}");
    }
}
