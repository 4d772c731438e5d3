//! What workers know at a barrier, in a folder.
//!
//! ```text
//! FOLDER/00000007/WORKER.state    one a worker: written beside, synced, renamed
//! FOLDER/00000007/complete        last: which workers wrote theirs, and which had finished before. Without it, there is no checkpoint 7
//! ```
//!
//! A state file is the line `nearpath state 1`, a CRC-32 of the rest (4 bytes, little-endian), and the worker's own bytes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const BEGINNING: &[u8] = b"nearpath state 1\n";

/// Who took part in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its number.
    pub number: u64,
    /// Who wrote down what it knew.
    pub states: Vec<String>,
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

    /// A worker's state is safe when this returns.
    ///
    /// # Errors
    /// The disk's.
    pub fn save(&self, number: u64, worker: &str, state: &[u8]) -> io::Result<()> {
        let folder = self.of(number);
        fs::create_dir_all(&folder)?;
        let check = crc32fast::hash(state).to_le_bytes();
        write(&folder, &format!("{worker}.state"), &[BEGINNING, &check, state])
    }

    /// A worker's state.
    ///
    /// # Errors
    /// The disk's, and a file that is not what was written.
    pub fn load(&self, number: u64, worker: &str) -> io::Result<Vec<u8>> {
        let path = self.of(number).join(format!("{worker}.state"));
        let mut bytes = fs::read(&path)?;
        let start = BEGINNING.len() + 4;
        let whole = bytes.len() >= start && bytes.starts_with(BEGINNING);
        if !whole || bytes[BEGINNING.len()..start] != crc32fast::hash(&bytes[start..]).to_le_bytes() {
            let told =
                format!("{} is damaged: remove the checkpoint {number}, and go on from an older one", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, told));
        }
        bytes.drain(..start);
        Ok(bytes)
    }

    /// From now on the job goes on from this one. Those before it are removed.
    ///
    /// # Errors
    /// The disk's.
    pub fn complete(&self, manifest: &Manifest) -> io::Result<()> {
        let text = serde_json::to_vec(manifest)?;
        fs::create_dir_all(self.of(manifest.number))?; // nobody had anything to write down
        write(&self.of(manifest.number), "complete", &[&text])?;
        File::open(&self.0)?.sync_all()?;
        for number in self.numbers()?.into_iter().filter(|number| *number < manifest.number) {
            fs::remove_dir_all(self.of(number))?;
        }
        Ok(())
    }

    /// The last that is complete.
    ///
    /// # Errors
    /// The disk's.
    pub fn latest(&self) -> io::Result<Option<Manifest>> {
        let mut numbers = self.numbers()?;
        numbers.sort_unstable_by(|left, right| right.cmp(left));
        for number in numbers {
            match fs::read(self.of(number).join("complete")) {
                Ok(text) => return Ok(Some(serde_json::from_slice(&text)?)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn numbers(&self) -> io::Result<Vec<u64>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name()));
        let names: io::Result<Vec<_>> = names.collect();
        Ok(names?.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }
}

fn write(folder: &Path, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let beside = folder.join(format!("{name}.new"));
    let mut file = File::create(&beside)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(&beside, folder.join(name))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(number: u64) -> Manifest {
        Manifest { number, states: vec!["a".to_owned()], finished: Vec::new() }
    }

    #[test]
    fn only_what_is_complete_counts() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path().join("job")).unwrap();
        assert_eq!(folder.latest().unwrap(), None);
        folder.save(1, "a", b"one").unwrap();
        assert_eq!(folder.latest().unwrap(), None);
        folder.complete(&manifest(1)).unwrap();
        folder.save(2, "a", b"two").unwrap();
        assert_eq!(folder.latest().unwrap(), Some(manifest(1)));
        assert_eq!(folder.load(1, "a").unwrap(), b"one");
        folder.complete(&manifest(2)).unwrap();
        assert_eq!(folder.latest().unwrap(), Some(manifest(2)));
        assert!(folder.load(1, "a").is_err(), "it was removed");
    }

    #[test]
    fn damage_is_told() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        folder.save(1, "a", b"something").unwrap();
        let path = place.path().join("00000001/a.state");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(folder.load(1, "a").unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(&path, b"short").unwrap();
        assert!(folder.load(1, "a").is_err());
    }
}
