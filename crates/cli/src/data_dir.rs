//! The default data directory of `nearpath up`; the command line finds the local credentials there.

use std::path::PathBuf;

/// `$NEARPATH_DATA_DIR`, else `/var/lib/nearpath` as root, else `nearpath` in the user's state folder.
pub fn default_data_dir() -> PathBuf {
    if let Some(given) = std::env::var_os("NEARPATH_DATA_DIR").filter(|given| !given.is_empty()) {
        return PathBuf::from(given);
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/nearpath");
    }
    let state = std::env::var_os("XDG_STATE_HOME")
        .filter(|state| !state.is_empty())
        .map(PathBuf::from);
    let home = || {
        PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into()))
            .join(".local/state")
    };
    state.unwrap_or_else(home).join("nearpath")
}
