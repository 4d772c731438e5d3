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

const BEGINNING: &[u8] = b"nearpath state 1\n";

/// Who took part in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its number.
    pub number: u64,
    /// Who wrote down what it knew, and the mark of that save.
    pub states: BTreeMap<String, String>,
    /// Who had nothing more to do: their edges have ended.
    pub finished: Vec<String>,
}

/// A folder of checkpoints of one job.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// There, or made.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn of(&self, number: u64) -> PathBuf {
        self.0.join(format!("{number:08}"))
    }

    fn state(&self, number: u64, worker: &str, mark: &str) -> PathBuf {
        self.of(number).join(format!("{worker}.{mark}.state"))
    }

    /// A worker's state is safe when this returns. `mark` is one that nobody has used.
    ///
    /// # Errors
    /// The disk's; [`ErrorKind::AlreadyExists`] where somebody has used the mark.
    pub fn save(&self, number: u64, worker: &str, mark: &str, state: &[u8]) -> io::Result<()> {
        fs::create_dir_all(self.of(number))?;
        let check = crc32fast::hash(state).to_le_bytes();
        write(&self.state(number, worker, mark), &[BEGINNING, &check, state])
    }

    /// A worker's state in a complete checkpoint.
    ///
    /// # Errors
    /// The disk's; [`ErrorKind::NotFound`] where the checkpoint has none of this worker; [`ErrorKind::InvalidData`] for a file
    /// that is not what was written.
    pub fn load(&self, number: u64, worker: &str) -> io::Result<Vec<u8>> {
        let manifest = self.manifest(number)?;
        let mark = manifest.states.get(worker).ok_or_else(|| {
            let told = format!("checkpoint {number} in {} has no state of {worker}", self.0.display());
            io::Error::new(ErrorKind::NotFound, told)
        })?;
        let path = self.state(number, worker, mark);
        let mut bytes = fs::read(&path)?;
        let start = BEGINNING.len() + 4;
        let whole = bytes.len() >= start && bytes.starts_with(BEGINNING);
        if !whole || bytes[BEGINNING.len()..start] != crc32fast::hash(&bytes[start..]).to_le_bytes() {
            return Err(damaged(&path, number));
        }
        bytes.drain(..start);
        Ok(bytes)
    }

    /// From now on the job goes on from this one. Those before it are removed.
    ///
    /// # Errors
    /// The disk's; [`ErrorKind::AlreadyExists`] where another run has completed this one, or a later one.
    pub fn complete(&self, manifest: &Manifest) -> io::Result<()> {
        let numbers = self.numbers()?;
        let newest = self.newest(numbers.clone()).filter(|newest| *newest > manifest.number);
        if let Some(newest) = newest {
            return Err(self.taken(newest));
        }
        fs::create_dir_all(self.of(manifest.number))?; // nobody had anything to write down
        self.write_manifest(manifest)?;
        File::open(&self.0)?.sync_all()?;
        for number in numbers.into_iter().filter(|number| *number < manifest.number) {
            remove(&self.of(number))?;
        }
        Ok(())
    }

    fn write_manifest(&self, manifest: &Manifest) -> io::Result<()> {
        let text = serde_json::to_vec(manifest)?;
        let path = self.of(manifest.number).join("complete");
        match write(&path, &[&text]) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && fs::read(&path)? != text => {
                Err(self.taken(manifest.number))
            }
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn taken(&self, number: u64) -> io::Error {
        let told = format!(
            "another run of this job has completed checkpoint {number} in {}: let one of them go on, and end the other",
            self.0.display()
        );
        io::Error::new(ErrorKind::AlreadyExists, told)
    }

    /// The last that is complete.
    ///
    /// # Errors
    /// The disk's, and a list that is not what was written.
    pub fn latest(&self) -> io::Result<Option<Manifest>> {
        self.newest(self.numbers()?).map(|number| self.manifest(number)).transpose()
    }

    /// Nothing of the job stays.
    ///
    /// # Errors
    /// The disk's.
    pub fn clear(&self) -> io::Result<()> {
        remove(&self.0)
    }

    fn manifest(&self, number: u64) -> io::Result<Manifest> {
        let path = self.of(number).join("complete");
        serde_json::from_slice(&fs::read(&path)?).map_err(|_| damaged(&path, number))
    }

    fn newest(&self, numbers: Vec<u64>) -> Option<u64> {
        numbers.into_iter().filter(|number| self.of(*number).join("complete").exists()).max()
    }

    fn numbers(&self) -> io::Result<Vec<u64>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name()));
        let names: io::Result<Vec<_>> = names.collect();
        Ok(names?.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }
}

fn damaged(path: &Path, number: u64) -> io::Error {
    let told = format!("{} is damaged: remove the checkpoint {number}, and go on from an older one", path.display());
    io::Error::new(ErrorKind::InvalidData, told)
}

/// Who was taken for dead may write into it meanwhile: what is left goes with the next.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => Err(error),
        _ => Ok(()),
    }
}

/// Whole or not at all, and never over what is there.
fn write(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
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

    fn manifest(number: u64, mark: &str) -> Manifest {
        Manifest { number, states: BTreeMap::from([("a".to_owned(), mark.to_owned())]), finished: Vec::new() }
    }

    #[test]
    fn only_what_is_complete_counts() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path().join("job")).unwrap();
        assert_eq!(folder.latest().unwrap(), None);
        folder.save(1, "a", "x", b"one").unwrap();
        assert_eq!(folder.latest().unwrap(), None);
        folder.complete(&manifest(1, "x")).unwrap();
        folder.save(2, "a", "y", b"two").unwrap();
        assert_eq!(folder.latest().unwrap(), Some(manifest(1, "x")));
        assert_eq!(folder.load(1, "a").unwrap(), b"one");
        folder.complete(&manifest(2, "y")).unwrap();
        assert_eq!(folder.latest().unwrap(), Some(manifest(2, "y")));
        assert!(folder.load(1, "a").is_err(), "it was removed");
        folder.clear().unwrap();
        assert!(!place.path().join("job").exists());
    }

    #[test]
    fn what_a_worker_saves_that_was_taken_for_dead_is_not_taken_for_its_successors() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        folder.save(1, "a", "successor", b"new").unwrap();
        folder.save(1, "a", "dead", b"old").unwrap(); // before the checkpoint is complete
        folder.complete(&manifest(1, "successor")).unwrap();
        folder.save(1, "a", "deader", b"older").unwrap(); // and after
        assert_eq!(folder.load(1, "a").unwrap(), b"new");
        assert_eq!(folder.save(1, "a", "successor", b"old").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(folder.load(1, "a").unwrap(), b"new");
    }

    #[test]
    fn of_two_runs_one_completes_a_checkpoint() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        folder.complete(&manifest(3, "x")).unwrap();
        folder.complete(&manifest(3, "x")).unwrap(); // the same, once more
        for late in [manifest(3, "y"), manifest(2, "y")] {
            let error = folder.complete(&late).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            assert!(error.to_string().contains("has completed checkpoint 3"), "{error}");
        }
        assert_eq!(folder.latest().unwrap(), Some(manifest(3, "x")));
    }

    #[test]
    fn damage_is_told() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        folder.save(1, "a", "x", b"something").unwrap();
        folder.complete(&manifest(1, "x")).unwrap();
        let path = place.path().join("00000001/a.x.state");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(folder.load(1, "a").unwrap_err().kind(), ErrorKind::InvalidData);
        fs::write(&path, b"short").unwrap();
        assert!(folder.load(1, "a").is_err());
        fs::write(place.path().join("00000001/complete"), b"{").unwrap();
        assert_eq!(folder.latest().unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
