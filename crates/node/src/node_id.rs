//! The id of a node.

use std::path::Path;
use std::{fs, io};

/// Returns the id that names the node's leftovers on the machine, such as cgroups.
///
/// A later process on the same data directory finds them by it, and no other process touches them.
/// The id is created on first use and stored in the file `node-id`.
///
/// # Errors
/// Fails when the file cannot be read or written.
pub fn node_id(data_dir: &Path) -> io::Result<String> {
    let file = data_dir.join("node-id");
    match fs::read_to_string(&file) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().to_owned()),
        // A crash between creating and writing the file leaves it empty.
        Ok(_) => create_id(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_id(&file),
        Err(error) => Err(error),
    }
}

fn create_id(file: &Path) -> io::Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid")?
        .trim()
        .to_owned();
    fs::write(file, &id)?;
    // Cgroups are named after it: an id lost in a power failure would orphan them.
    fs::File::open(file)?.sync_all()?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_kept_and_an_empty_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let made = node_id(folder.path()).unwrap();
        assert_eq!(made.len(), 36, "{made}");
        assert_eq!(node_id(folder.path()).unwrap(), made);
        fs::write(folder.path().join("node-id"), "\n").unwrap();
        assert_ne!(node_id(folder.path()).unwrap(), made);
    }
}
