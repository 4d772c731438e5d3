//! Access of a stack file to its environment: variables, files, folders, nodes. A trait, so that tests run
//! without a file system, and `nearpath rm` can ignore folders.

use std::io;
use std::path::{Path, PathBuf};

use nearpath_types::NodeAddresses;

/// Largest file that is read: 1 MiB.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Variables, files and folders that a stack file may name.
pub trait StackContext {
    /// Returns the value of an environment variable.
    fn env_variable(&self, name: &str) -> Option<String>;
    /// Reads the text of a file.
    ///
    /// # Errors
    /// When it cannot be read, is larger than [`MAX_FILE_BYTES`] or is not UTF-8.
    fn read_file(&self, path: &Path) -> io::Result<String>;
    /// Resolves a folder to its absolute path.
    ///
    /// # Errors
    /// When it is missing or not a folder.
    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf>;
    /// Returns the nodes that functions may name; `None`: the nodes are not known here, so that
    /// every name is accepted.
    fn known_nodes(&self) -> Option<&NodeAddresses> {
        None
    }
}

/// Environment and file system of this process.
pub struct HostContext;

impl StackContext for HostContext {
    fn env_variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn read_file(&self, path: &Path) -> io::Result<String> {
        use io::Read;
        let mut bytes = Vec::new();
        // One byte above the limit shows that the file is too large. Its metadata would not: a
        // device or pipe has no size.
        std::fs::File::open(path)?
            .take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("larger than {} KiB", MAX_FILE_BYTES >> 10),
            ));
        }
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("not UTF-8 text: the byte at offset {at} is invalid"),
            )
        })
    }

    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf> {
        // The function's image becomes this path (`file://…`): without symbolic links, so that a
        // later change of one has no effect.
        let path = path.canonicalize()?;
        match path.is_dir() {
            true => Ok(path),
            false => Err(io::Error::new(io::ErrorKind::NotADirectory, "not a folder")),
        }
    }
}
