//! Backups: the database and the deployed folders in one tar file.
//!
//! [`archive`] writes a backup while the controller runs, [`restore`] makes a data directory of it.
//! The last file of an archive lists the SHA-256 of all others, so a cut archive is noticed, and
//! `tar -xf FILE && sha256sum -c SHA256SUMS` checks one without nearpath. Folders and links are
//! listed as comments, which sha256sum(1) skips: it would follow a link.

pub(crate) mod archive;
mod restore;

use std::fmt::Write;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ring::digest::{Context, SHA256, digest};

pub use restore::{RestoreError, RestoreSummary, restore_backup};

/// Folder of the deployed folders, in archives and data directories: `FUNCTION/REVISION/…` below it.
const ARTIFACTS_DIR: &str = "artifacts";
/// The last file of an archive, in the format of sha256sum(1).
const CHECKSUMS_FILE: &str = "SHA256SUMS";

/// Reads through and computes the SHA-256 of what was read.
struct HashingReader<R> {
    inner: R,
    hash: Context,
}

impl<R: Read> HashingReader<R> {
    fn new(inner: R) -> Self {
        Self {
            inner,
            hash: Context::new(&SHA256),
        }
    }

    /// Returns the hash in hexadecimal digits.
    fn finish(self) -> String {
        to_hex(self.hash.finish().as_ref())
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a `String` cannot fail
        text
    })
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

/// Returns the line of a file as sha256sum(1) writes it: with a backslash in front if the name has
/// one or a line break.
fn checksum_line(name: &Path, hash: &str) -> Vec<u8> {
    let (mut escaped, mut prefix) = (Vec::new(), "");
    for byte in name.as_os_str().as_bytes() {
        match byte {
            b'\\' => escaped.extend(b"\\\\"),
            b'\n' => escaped.extend(b"\\n"),
            b'\r' => escaped.extend(b"\\r"),
            other => escaped.push(*other),
        }
    }
    if escaped != name.as_os_str().as_bytes() {
        prefix = "\\";
    }
    let mut line = format!("{prefix}{hash}  ").into_bytes();
    line.extend(escaped);
    line.push(b'\n');
    line
}

/// Begins the lines of folders and links.
const COMMENT_PREFIX: &[u8] = b"# ";

/// Returns the line of a folder.
fn folder_line(name: &Path) -> Vec<u8> {
    comment_line("folder", name, &[])
}

/// Returns the line of a symbolic link, with the hash of its target's text.
fn link_line(name: &Path, target: &Path) -> Vec<u8> {
    comment_line("link", name, target.as_os_str().as_bytes())
}

fn comment_line(kind: &str, name: &Path, content: &[u8]) -> Vec<u8> {
    let hash = to_hex(digest(&SHA256, content).as_ref());
    let mut line = COMMENT_PREFIX.to_vec();
    line.extend(format!("{kind} ").as_bytes());
    line.extend(checksum_line(name, &hash));
    line
}
