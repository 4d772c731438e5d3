//! Writes an archive.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use super::{ARTIFACTS_DIR, CHECKSUMS_FILE, HashingReader, checksum_line, folder_line, link_line};
use crate::store::DATABASE_FILE;

/// A deployed folder.
#[derive(Debug)]
pub(crate) struct ArchivedFolder {
    /// `FUNCTION/REVISION`.
    pub(crate) name: PathBuf,
    /// The copy that instances run from; nothing changes in it.
    pub(crate) path: PathBuf,
}

/// Writes an archive of a database and folders to `out`.
///
/// # Errors
/// When something cannot be read or `out` takes no more.
pub(crate) fn write_archive(
    out: impl Write,
    database: File,
    folders: &[ArchivedFolder],
) -> io::Result<()> {
    let mut archive = Archive {
        tar: Builder::new(out),
        checksums: Vec::new(),
    };
    archive.add_file(Path::new(DATABASE_FILE), database)?;
    for folder in folders {
        let name = Path::new(ARTIFACTS_DIR).join(&folder.name);
        archive.add_folder(&name, &folder.path)?;
    }
    archive.finish()
}

struct Archive<W: Write> {
    tar: Builder<W>,
    checksums: Vec<u8>,
}

impl<W: Write> Archive<W> {
    fn add_folder(&mut self, name: &Path, folder: &Path) -> io::Result<()> {
        self.tar.append_dir(name, folder)?;
        self.checksums.extend(folder_line(name));
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (name, path) = (name.join(entry.file_name()), entry.path());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.add_folder(&name, &path)?;
            } else if kind.is_symlink() {
                self.add_link(&name, &fs::read_link(&path)?)?;
            } else {
                self.add_file(&name, File::open(&path)?)?;
            }
        }
        Ok(())
    }

    fn add_link(&mut self, name: &Path, target: &Path) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        self.tar.append_link(&mut header, name, target)?;
        self.checksums.extend(link_line(name, target));
        Ok(())
    }

    fn add_file(&mut self, name: &Path, file: File) -> io::Result<()> {
        let metadata = file.metadata()?;
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode());
        header.set_size(metadata.len());
        header.set_mtime(metadata.mtime().try_into().unwrap_or(0));
        // Exactly what the header announces, or the next header would be misread.
        let mut content = HashingReader::new(file.take(metadata.len()));
        self.tar.append_data(&mut header, name, &mut content)?;
        self.checksums
            .extend(checksum_line(name, &content.finish()));
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(0o444);
        header.set_size(self.checksums.len() as u64);
        self.tar
            .append_data(&mut header, CHECKSUMS_FILE, &self.checksums[..])?;
        self.tar.into_inner()?.flush()
    }
}
