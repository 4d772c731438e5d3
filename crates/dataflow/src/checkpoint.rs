//! States of workers at a barrier, stored in a folder.
//!
//! ```text
//! FOLDER/00000007/WORKER.MARK.state   one per save, never overwritten: temporary file, fsync, rename
//! FOLDER/00000007/complete            written last: the states that belong to it, by their marks
//! ```
//!
//! Without the file `complete` there is no checkpoint 7. A state file is the line `nearpath state
//! 1`, a CRC-32 of the rest (4 bytes, little-endian), and the worker's own bytes.
//!
//! Every save has a new mark. A worker that was declared dead may resume and save its state for a
//! checkpoint that its successor has saved too. Then two files exist, and the manifest names the
//! one that belongs to the checkpoint. The manifest is written once: two runs that resume from one
//! folder cannot both complete a checkpoint of one number. The SDK has the same layout for object
//! stores; `contract/dataflow.md` specifies both.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

// A text line with a version, so that `head -1` identifies a state file.
const STATE_MAGIC: &[u8] = b"nearpath state 1\n";

/// Workers that took part in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointManifest {
    /// Number of the checkpoint.
    pub number: u64,
    /// Workers that saved a state, with the mark of that save.
    pub states: BTreeMap<String, String>,
    /// Workers that had finished: their edges have ended.
    pub finished: Vec<String>,
}

/// Folder with the checkpoints of one job.
#[derive(Clone, Debug)]
pub struct CheckpointFolder(PathBuf);

impl CheckpointFolder {
    /// Opens the folder, and creates it when it is missing.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn checkpoint_path(&self, number: u64) -> PathBuf {
        self.0.join(format!("{number:08}"))
    }

    fn state_path(&self, number: u64, worker: &str, mark: &str) -> PathBuf {
        self.checkpoint_path(number)
            .join(format!("{worker}.{mark}.state"))
    }

    /// Saves a worker's state; it is on disk when this returns. `mark` must be unused.
    ///
    /// # Errors
    /// Errors of the disk; [`ErrorKind::AlreadyExists`] when the mark was used before.
    pub fn save_state(
        &self,
        number: u64,
        worker: &str,
        mark: &str,
        state: &[u8],
    ) -> io::Result<()> {
        fs::create_dir_all(self.checkpoint_path(number))?;
        let checksum = crc32fast::hash(state).to_le_bytes();
        write_new_file(
            &self.state_path(number, worker, mark),
            &[STATE_MAGIC, &checksum, state],
        )
    }

    /// Loads a worker's state from a complete checkpoint.
    ///
    /// # Errors
    /// Errors of the disk; [`ErrorKind::NotFound`] when the checkpoint has no state of this worker;
    /// [`ErrorKind::InvalidData`] when a file is damaged.
    pub fn load_state(&self, number: u64, worker: &str) -> io::Result<Vec<u8>> {
        let manifest = self.read_manifest(number)?;
        let mark = manifest.states.get(worker).ok_or_else(|| {
            let message = format!(
                "checkpoint {number} in {} has no state of {worker}",
                self.0.display()
            );
            io::Error::new(ErrorKind::NotFound, message)
        })?;
        let path = self.state_path(number, worker, mark);
        let mut bytes = fs::read(&path)?;
        let payload_start = STATE_MAGIC.len() + 4;
        let has_header = bytes.len() >= payload_start && bytes.starts_with(STATE_MAGIC);
        if !has_header
            || bytes[STATE_MAGIC.len()..payload_start]
                != crc32fast::hash(&bytes[payload_start..]).to_le_bytes()
        {
            return Err(damaged_file(&path, number));
        }
        bytes.drain(..payload_start);
        Ok(bytes)
    }

    /// Completes a checkpoint: the job resumes from it. Older checkpoints are removed.
    ///
    /// # Errors
    /// Errors of the disk; [`ErrorKind::AlreadyExists`] when another run has completed this
    /// checkpoint or a later one.
    pub fn complete_checkpoint(&self, manifest: &CheckpointManifest) -> io::Result<()> {
        let numbers = self.checkpoint_numbers()?;
        let newest = self
            .newest_complete(numbers.clone())
            .filter(|newest| *newest > manifest.number);
        if let Some(newest) = newest {
            return Err(self.already_completed(newest));
        }
        // Missing when no worker had a state to save.
        fs::create_dir_all(self.checkpoint_path(manifest.number))?;
        self.write_manifest(manifest)?;
        // The folder of the new checkpoint must be durable before older ones go: else a power loss
        // could leave neither.
        File::open(&self.0)?.sync_all()?;
        for number in numbers
            .into_iter()
            .filter(|number| *number < manifest.number)
        {
            remove_folder(&self.checkpoint_path(number))?;
        }
        Ok(())
    }

    fn write_manifest(&self, manifest: &CheckpointManifest) -> io::Result<()> {
        let text = serde_json::to_vec(manifest)?;
        let path = self.checkpoint_path(manifest.number).join("complete");
        // The same manifest again is no error: a completion may be retried after a failed sync or
        // removal.
        match write_new_file(&path, &[&text]) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && fs::read(&path)? != text => {
                Err(self.already_completed(manifest.number))
            }
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn already_completed(&self, number: u64) -> io::Error {
        let message = format!(
            "another run of this job has completed checkpoint {number} in {}: keep one of the runs and end the other",
            self.0.display()
        );
        io::Error::new(ErrorKind::AlreadyExists, message)
    }

    /// Manifest of the last complete checkpoint.
    ///
    /// # Errors
    /// Errors of the disk; [`ErrorKind::InvalidData`] when the manifest is damaged.
    pub fn latest_manifest(&self) -> io::Result<Option<CheckpointManifest>> {
        self.newest_complete(self.checkpoint_numbers()?)
            .map(|number| self.read_manifest(number))
            .transpose()
    }

    /// Removes all checkpoints of the job.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn remove_all(&self) -> io::Result<()> {
        remove_folder(&self.0)
    }

    fn read_manifest(&self, number: u64) -> io::Result<CheckpointManifest> {
        let path = self.checkpoint_path(number).join("complete");
        serde_json::from_slice(&fs::read(&path)?).map_err(|_| damaged_file(&path, number))
    }

    fn newest_complete(&self, numbers: Vec<u64>) -> Option<u64> {
        numbers
            .into_iter()
            .filter(|number| self.checkpoint_path(*number).join("complete").exists())
            .max()
    }

    fn checkpoint_numbers(&self) -> io::Result<Vec<u64>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name()));
        let names: io::Result<Vec<_>> = names.collect();
        Ok(names?
            .iter()
            // Other names are skipped: only numbers are checkpoints.
            .filter_map(|name| name.to_str()?.parse().ok())
            .collect())
    }
}

fn damaged_file(path: &Path, number: u64) -> io::Error {
    let message = format!(
        "{} is damaged: remove the checkpoint {number} and resume from an older one",
        path.display()
    );
    io::Error::new(ErrorKind::InvalidData, message)
}

/// Removes a folder as far as possible. A worker that was declared dead may still write into it;
/// the next completion removes what is left.
fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Writes a file completely or not at all, and never replaces an existing one.
fn write_new_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let mut file = NamedTempFile::new_in(folder)?;
    for part in parts {
        file.write_all(part)?;
    }
    // Content before name: a rename that is durable before the content would leave an empty file
    // after a power loss.
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    // The directory entry is metadata of the folder, so the folder needs an fsync of its own
    // (fsync(2)).
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest_of(number: u64, mark: &str) -> CheckpointManifest {
        CheckpointManifest {
            number,
            states: BTreeMap::from([("a".to_owned(), mark.to_owned())]),
            finished: Vec::new(),
        }
    }

    #[test]
    fn an_incomplete_checkpoint_is_ignored() {
        let temp_dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(temp_dir.path().join("job")).unwrap();
        assert_eq!(folder.latest_manifest().unwrap(), None);
        folder.save_state(1, "a", "x", b"one").unwrap();
        assert_eq!(folder.latest_manifest().unwrap(), None);
        folder.complete_checkpoint(&manifest_of(1, "x")).unwrap();
        folder.save_state(2, "a", "y", b"two").unwrap();
        assert_eq!(folder.latest_manifest().unwrap(), Some(manifest_of(1, "x")));
        assert_eq!(folder.load_state(1, "a").unwrap(), b"one");
        folder.complete_checkpoint(&manifest_of(2, "y")).unwrap();
        assert_eq!(folder.latest_manifest().unwrap(), Some(manifest_of(2, "y")));
        assert!(folder.load_state(1, "a").is_err(), "it was removed");
        folder.remove_all().unwrap();
        assert!(!temp_dir.path().join("job").exists());
    }

    #[test]
    fn a_late_save_of_a_replaced_worker_does_not_replace_its_successors_state() {
        let temp_dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(temp_dir.path()).unwrap();
        folder.save_state(1, "a", "successor", b"new").unwrap();
        folder.save_state(1, "a", "dead", b"old").unwrap(); // before the checkpoint is complete
        folder
            .complete_checkpoint(&manifest_of(1, "successor"))
            .unwrap();
        folder.save_state(1, "a", "deader", b"older").unwrap(); // and after
        assert_eq!(folder.load_state(1, "a").unwrap(), b"new");
        assert_eq!(
            folder
                .save_state(1, "a", "successor", b"old")
                .unwrap_err()
                .kind(),
            ErrorKind::AlreadyExists
        );
        assert_eq!(folder.load_state(1, "a").unwrap(), b"new");
    }

    #[test]
    fn only_one_of_two_runs_completes_a_checkpoint() {
        let temp_dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(temp_dir.path()).unwrap();
        folder.complete_checkpoint(&manifest_of(3, "x")).unwrap();
        folder.complete_checkpoint(&manifest_of(3, "x")).unwrap(); // the same, once more
        for late in [manifest_of(3, "y"), manifest_of(2, "y")] {
            let error = folder.complete_checkpoint(&late).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            assert!(
                error.to_string().contains("has completed checkpoint 3"),
                "{error}"
            );
        }
        assert_eq!(folder.latest_manifest().unwrap(), Some(manifest_of(3, "x")));
    }

    #[test]
    fn damaged_files_are_reported() {
        let temp_dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(temp_dir.path()).unwrap();
        folder.save_state(1, "a", "x", b"something").unwrap();
        folder.complete_checkpoint(&manifest_of(1, "x")).unwrap();
        let path = temp_dir.path().join("00000001/a.x.state");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(
            folder.load_state(1, "a").unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        fs::write(&path, b"short").unwrap();
        assert!(folder.load_state(1, "a").is_err());
        fs::write(temp_dir.path().join("00000001/complete"), b"{").unwrap();
        assert_eq!(
            folder.latest_manifest().unwrap_err().kind(),
            ErrorKind::InvalidData
        );
    }
}
