//! What workers know at a barrier, in a folder.
//!
//! ```text
//! FOLDER/00000007/WORKER.MARK.state   one for each save, never written again: written beside, synced, renamed
//! FOLDER/00000007/complete            last: whose states belong to it, by their marks. Without it, there is no checkpoint 7
//! ```
//!
//! A state file is the line `nearpath state 1`, a CRC-32 of the rest (4 bytes, little-endian), and the worker's own bytes.
//!
//! A mark is new for every save. A worker that was taken for dead may wake up and save what it knew for a checkpoint that its
//! successor has written down, too: then two files lie there, and the list names the one that belongs to it. The list itself is
//! written once: two runs that both go on from one folder cannot make two checkpoints of one number.
//! The same layout in an object store is the SDK's; `contract/dataflow.md` has it for both.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

const STATE_MAGIC: &[u8] = b"nearpath state 1\n";

/// Who took part in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointManifest {
    /// Its number.
    pub number: u64,
    /// Who wrote down what it knew, and the mark of that save.
    pub states: BTreeMap<String, String>,
    /// Who had nothing more to do: their edges have ended.
    pub finished: Vec<String>,
}

/// A folder of checkpoints of one job.
#[derive(Clone, Debug)]
pub struct CheckpointFolder(PathBuf);

impl CheckpointFolder {
    /// There, or made.
    ///
    /// # Errors
    /// The disk's.
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

    /// A worker's state is safe when this returns. `mark` is one that nobody has used.
    ///
    /// # Errors
    /// The disk's; [`ErrorKind::AlreadyExists`] where somebody has used the mark.
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

    /// A worker's state in a complete checkpoint.
    ///
    /// # Errors
    /// The disk's; [`ErrorKind::NotFound`] where the checkpoint has none of this worker; [`ErrorKind::InvalidData`] for a file
    /// that is not what was written.
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

    /// From now on the job goes on from this one. Those before it are removed.
    ///
    /// # Errors
    /// The disk's; [`ErrorKind::AlreadyExists`] where another run has completed this one, or a later one.
    pub fn complete_checkpoint(&self, manifest: &CheckpointManifest) -> io::Result<()> {
        let numbers = self.checkpoint_numbers()?;
        let newest = self
            .newest_complete(numbers.clone())
            .filter(|newest| *newest > manifest.number);
        if let Some(newest) = newest {
            return Err(self.already_completed(newest));
        }
        fs::create_dir_all(self.checkpoint_path(manifest.number))?; // nobody had anything to write down
        self.write_manifest(manifest)?;
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
            "another run of this job has completed checkpoint {number} in {}: let one of them go on, and end the other",
            self.0.display()
        );
        io::Error::new(ErrorKind::AlreadyExists, message)
    }

    /// The last that is complete.
    ///
    /// # Errors
    /// The disk's, and a list that is not what was written.
    pub fn latest_manifest(&self) -> io::Result<Option<CheckpointManifest>> {
        self.newest_complete(self.checkpoint_numbers()?)
            .map(|number| self.read_manifest(number))
            .transpose()
    }

    /// Nothing of the job stays.
    ///
    /// # Errors
    /// The disk's.
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
            .filter_map(|name| name.to_str()?.parse().ok())
            .collect())
    }
}

fn damaged_file(path: &Path, number: u64) -> io::Error {
    let message = format!(
        "{} is damaged: remove the checkpoint {number}, and go on from an older one",
        path.display()
    );
    io::Error::new(ErrorKind::InvalidData, message)
}

/// Who was taken for dead may write into it meanwhile: what is left goes with the next.
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

/// Whole or not at all, and never over what is there.
fn write_new_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let mut file = NamedTempFile::new_in(folder)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
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
