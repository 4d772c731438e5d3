//! What a stack file may look at outside itself: variables, files, folders. A trait, so that tests can hold a whole world.

use std::io;
use std::path::{Path, PathBuf};

/// Files larger than this are refused: 1 MiB.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The world around a stack file.
pub trait StackContext {
    /// An environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// A file's text.
    ///
    /// # Errors
    /// When it cannot be read, is larger than [`MAX_FILE_BYTES`] or is not UTF-8.
    fn read_file(&self, path: &Path) -> io::Result<String>;
    /// The absolute path of a folder.
    ///
    /// # Errors
    /// When it is missing or not a folder.
    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf>;
}

/// This process's environment and file system.
pub struct HostContext;

impl StackContext for HostContext {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn read_file(&self, path: &Path) -> io::Result<String> {
        use io::Read;
        let mut bytes = Vec::new();
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
                format!("not UTF-8 text: the byte at offset {at} is wrong"),
            )
        })
    }

    fn resolve_folder(&self, path: &Path) -> io::Result<PathBuf> {
        let path = path.canonicalize()?;
        match path.is_dir() {
            true => Ok(path),
            false => Err(io::Error::new(io::ErrorKind::NotADirectory, "not a folder")),
        }
    }
}
