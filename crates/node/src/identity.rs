//! What a node is called.

use std::path::Path;
use std::{fs, io};

/// Names what the node leaves on the machine (its cgroups), so that a later process on the same data directory finds it and
/// no other process touches it. Made on first use, kept in the file `node-id`.
///
/// # Errors
/// When the file cannot be read or written.
pub fn node_id(data_dir: &Path) -> io::Result<String> {
    let file = data_dir.join("node-id");
    match fs::read_to_string(&file) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().to_owned()),
        Ok(_) => make(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&file),
        Err(error) => Err(error),
    }
}

fn make(file: &Path) -> io::Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
    fs::write(file, &id)?;
    fs::File::open(file)?.sync_all()?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_made_again_after_a_crash_in_between() {
        let folder = tempfile::tempdir().unwrap();
        let made = node_id(folder.path()).unwrap();
        assert_eq!(made.len(), 36, "{made}");
        assert_eq!(node_id(folder.path()).unwrap(), made);
        fs::write(folder.path().join("node-id"), "\n").unwrap();
        assert_ne!(node_id(folder.path()).unwrap(), made);
    }
}
