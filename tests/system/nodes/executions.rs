//! Executions of calls, as the functions report them: into a pipe that all instances see, so that a
//! killed machine loses none.

use std::collections::HashMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

/// Executions by the number of the call.
type Counts = Arc<Mutex<HashMap<String, usize>>>;

/// Reader of the pipe.
pub(super) struct ExecutionLog {
    pub(super) pipe: PathBuf,
    counts: Counts,
}

impl ExecutionLog {
    /// Creates the pipe in `folder`, and reads it until the end of the process.
    pub(super) fn create(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        let pipe = folder.join("executions");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        fs::set_permissions(&pipe, Permissions::from_mode(0o666)).unwrap();
        // Open for writing, too: the pipe does not end with the last function.
        let open = OpenOptions::new().read(true).write(true).open(&pipe);
        let (lines, counts) = (BufReader::new(open.unwrap()), Counts::default());
        let counted = counts.clone();
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                *counted.lock().unwrap().entry(line).or_default() += 1;
            }
        });
        Self { pipe, counts }
    }

    /// Returns the calls that ran more than once, with the number of executions.
    pub(super) fn repeated(&self) -> Vec<(String, usize)> {
        let counts = self.counts.lock().unwrap();
        let repeated = counts.iter().filter(|(_, count)| **count > 1);
        repeated.map(|(id, count)| (id.clone(), *count)).collect()
    }

    /// Waits until a call runs.
    pub(super) async fn wait_for(&self, id: &str) {
        let runs = async || self.counts.lock().unwrap().contains_key(id);
        nearpath_testkit::eventually(&format!("call {id} runs"), runs).await;
    }

    /// Number of executions of all calls.
    pub(super) fn total(&self) -> usize {
        self.counts.lock().unwrap().values().sum()
    }
}
