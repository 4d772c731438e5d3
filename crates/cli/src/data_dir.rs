//! The default data directory of `nearpath up`; the command line finds the local credentials there.

use std::path::PathBuf;

/// `$NEARPATH_DATA_DIR`, else `/var/lib/nearpath` as root, else `nearpath` in the user's state
/// folder.
pub fn default_data_dir() -> PathBuf {
    // Read here as well as by clap: clients find the password of a server started with it.
    if let Some(from_env) =
        std::env::var_os("NEARPATH_DATA_DIR").filter(|from_env| !from_env.is_empty())
    {
        return PathBuf::from(from_env);
    }
    // The effective user: it decides which folder can be written.
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/nearpath");
    }
    let state = std::env::var_os("XDG_STATE_HOME")
        .filter(|state| !state.is_empty())
        .map(PathBuf::from);
    let user_state = || {
        // Services without a login may have no HOME.
        PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into()))
            .join(".local/state")
    };
    state.unwrap_or_else(user_state).join("nearpath")
}
