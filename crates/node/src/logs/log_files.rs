//! Log lines on disk, so that they outlive the process.
//!
//! Each function has a file `NAMESPACE/NAME.log` with one JSON object per line, and an older one
//! beside it. A thread writes them: no instance waits for the disk. When its queue or the disk is
//! full, lines are lost from the files, and nothing else happens.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nearpath_types::{FunctionId, LogLine};

/// Commands that wait for the thread; further lines are lost.
const MAX_WAITING_LINES: usize = 1_024;
/// Bytes after which no further line is added to a write; less than half of the smallest limit.
const MAX_WRITE_BYTES: usize = 16 << 10;
/// Interval of warnings about lost lines.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// The folder is measured again after this part of its limit was written.
const MEASURE_PARTS: u64 = 16;

/// Limits of the log files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFileBound {
    /// Maximum bytes for each function.
    pub function_bytes: u64,
    /// Maximum bytes for all functions together.
    pub total_bytes: u64,
}

impl Default for LogFileBound {
    fn default() -> Self {
        Self {
            function_bytes: 1 << 20,
            total_bytes: 256 << 20,
        }
    }
}

/// Handle to the log files. The thread ends with the last handle.
#[derive(Debug, Clone)]
pub(crate) struct LogFiles {
    folder: Arc<Path>,
    commands: SyncSender<FileCommand>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum FileCommand {
    Append(FunctionId, Vec<u8>),
    Remove(FunctionId),
    Flush(SyncSender<()>),
}

impl LogFiles {
    /// Creates the folder and starts the thread.
    ///
    /// # Errors
    /// Fails when the folder cannot be created, or no thread is available.
    pub(crate) fn start(folder: PathBuf, bound: LogFileBound) -> io::Result<Self> {
        create_private_folder(&folder)?;
        let (commands, receiver) = mpsc::sync_channel(MAX_WAITING_LINES);
        let (folder, lost) = (Arc::<Path>::from(folder), Arc::<AtomicU64>::default());
        let writer = LogFileWriter::new(Arc::clone(&folder), bound, Arc::clone(&lost));
        thread::Builder::new()
            .name("log-files".into())
            .spawn(move || writer.run(&receiver))?;
        Ok(Self {
            folder,
            commands,
            lost,
        })
    }

    /// Queues a line. Never waits.
    pub(crate) fn append_line(&self, function: &FunctionId, line: &LogLine) {
        let encoded = serde_json::to_vec(line).map(|mut bytes| {
            bytes.push(b'\n');
            bytes
        });
        let queued = encoded.is_ok_and(|bytes| {
            let append = FileCommand::Append(function.clone(), bytes);
            self.commands.try_send(append).is_ok()
        });
        // Relaxed: a counter for a warning, which guards no other data.
        self.lost.fetch_add(u64::from(!queued), Ordering::Relaxed);
    }

    /// Removes a function's files.
    pub(crate) fn remove_function(&self, function: &FunctionId) {
        remove_files(&self.folder, function);
        // Lines that still wait would create the file again. With a full queue they are old lines
        // of a function that is gone, which the limit removes.
        let _ = self
            .commands
            .try_send(FileCommand::Remove(function.clone()));
    }

    /// Removes the files of all functions but `kept`.
    pub(crate) fn remove_others<'a>(&self, kept: impl Iterator<Item = &'a FunctionId>) {
        let kept: HashSet<_> = kept
            .flat_map(|id| [old_file(&self.folder, id), log_file(&self.folder, id)])
            .collect();
        for (_, _, path) in list_files(&self.folder) {
            if !kept.contains(&path) {
                let _ = fs::remove_file(path); // the limit removes it later
            }
        }
    }

    /// Reads a function's lines, oldest first. Lines that a crash or a full disk cut are skipped.
    pub(crate) fn read_lines(&self, function: &FunctionId) -> Vec<LogLine> {
        let mut lines = Vec::new();
        for file in [
            old_file(&self.folder, function),
            log_file(&self.folder, function),
        ] {
            let bytes = fs::read(file).unwrap_or_default();
            let parsed = bytes.split(|byte| *byte == b'\n');
            lines.extend(parsed.filter_map(|line| serde_json::from_slice(line).ok()));
        }
        lines
    }

    /// Waits until all queued lines are written, at most for `limit`. Blocks.
    pub(crate) fn flush(&self, limit: Duration) {
        let (done, written) = mpsc::sync_channel(1);
        if self.commands.send(FileCommand::Flush(done)).is_ok() {
            let _ = written.recv_timeout(limit); // late lines are lost from the files
        }
    }
}

/// State of the thread.
struct LogFileWriter {
    folder: Arc<Path>,
    bound: LogFileBound,
    lost: Arc<AtomicU64>,
    warned_at: Option<Instant>,
    unmeasured_bytes: u64,
}

impl LogFileWriter {
    fn new(folder: Arc<Path>, bound: LogFileBound, lost: Arc<AtomicU64>) -> Self {
        Self {
            folder,
            bound,
            lost,
            warned_at: None,
            unmeasured_bytes: u64::MAX, // an earlier process may have had another limit
        }
    }

    fn run(mut self, commands: &Receiver<FileCommand>) {
        let mut next = None;
        while let Some(command) = next.take().or_else(|| commands.recv().ok()) {
            match command {
                FileCommand::Append(function, mut lines) => {
                    next = take_more_lines(commands, &function, &mut lines);
                    self.append_lines(&function, &lines);
                }
                FileCommand::Remove(function) => remove_files(&self.folder, &function),
                // The node may have given up.
                FileCommand::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn append_lines(&mut self, function: &FunctionId, lines: &[u8]) {
        if let Err(error) = write_lines(&self.folder, function, lines, self.bound.function_bytes) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.warn_of_loss(&error.to_string());
        } else if self.lost.load(Ordering::Relaxed) > 0 {
            self.warn_of_loss("lines came faster than the disk takes them");
        }
        self.unmeasured_bytes = self.unmeasured_bytes.saturating_add(lines.len() as u64);
        let part = self.bound.total_bytes / MEASURE_PARTS;
        if self.unmeasured_bytes >= part {
            self.unmeasured_bytes = 0;
            remove_oldest(&self.folder, self.bound.total_bytes - part);
        }
    }

    fn warn_of_loss(&mut self, why: &str) {
        if self
            .warned_at
            .is_some_and(|at| at.elapsed() < WARNING_INTERVAL)
        {
            return;
        }
        self.warned_at = Some(Instant::now());
        let lost = self.lost.swap(0, Ordering::Relaxed);
        tracing::warn!(lost, why, "log files: lines of functions were not written");
    }
}

/// Takes waiting lines of the same function, which a single write then appends. Returns the command
/// after them.
fn take_more_lines(
    commands: &Receiver<FileCommand>,
    function: &FunctionId,
    lines: &mut Vec<u8>,
) -> Option<FileCommand> {
    while lines.len() < MAX_WRITE_BYTES {
        match commands.try_recv().ok()? {
            FileCommand::Append(same, more) if same == *function => lines.extend(more),
            other => return Some(other),
        }
    }
    None
}

fn log_file(folder: &Path, function: &FunctionId) -> PathBuf {
    folder
        .join(function.namespace.as_str())
        .join(format!("{}.log", function.name))
}

fn old_file(folder: &Path, function: &FunctionId) -> PathBuf {
    log_file(folder, function).with_extension("log.old")
}

fn remove_files(folder: &Path, function: &FunctionId) {
    for file in [old_file(folder, function), log_file(folder, function)] {
        let _ = fs::remove_file(file); // a function without a line has none
    }
}

/// Appends lines. Opened each time: during a takeover two processes write and rename the files.
fn write_lines(folder: &Path, function: &FunctionId, lines: &[u8], bound: u64) -> io::Result<()> {
    let path = log_file(folder, function);
    let mut file = match open_to_append(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_private_folder(path.parent().unwrap_or(folder))?;
            open_to_append(&path)?
        }
        opened => opened?,
    };
    let mut length = file.metadata()?.len();
    // Two files, so half of the limit each.
    if length > 0 && length + lines.len() as u64 > bound / 2 {
        fs::rename(&path, old_file(folder, function))?;
        (file, length) = (open_to_append(&path)?, 0);
    }
    // A part of a line would also spoil the next one.
    file.write_all(lines)
        .inspect_err(|_| drop(file.set_len(length)))
}

fn open_to_append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(path)
}

fn create_private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Removes the files with the oldest lines until the others fit into `limit` bytes.
fn remove_oldest(folder: &Path, limit: u64) {
    let mut files = list_files(folder);
    files.sort();
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files {
        if total <= limit {
            return;
        }
        if fs::remove_file(path).is_ok() {
            total -= bytes;
        }
    }
}

/// Returns time of the last line, size and path of all files.
fn list_files(folder: &Path) -> Vec<(SystemTime, u64, PathBuf)> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    entries(folder)
        .flat_map(|namespace| entries(&namespace.path()))
        .filter_map(|file| {
            let metadata = file.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), file.path()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testkit::eventually;

    const BOUND: LogFileBound = LogFileBound {
        function_bytes: 4_000,
        total_bytes: 16_000,
    };

    fn line(function: &FunctionId, text: &str) -> LogLine {
        LogLine {
            name: function.name.to_string(),
            namespace: function.namespace.to_string(),
            instance: "i1".into(),
            timestamp: SystemTime::UNIX_EPOCH,
            text: text.into(),
        }
    }

    fn append(files: &LogFiles, function: &FunctionId, text: &str) {
        files.append_line(function, &line(function, text));
        files.flush(Duration::from_secs(30));
    }

    fn total_bytes(folder: &Path) -> u64 {
        list_files(folder).iter().map(|(_, bytes, _)| bytes).sum()
    }

    #[test]
    fn files_keep_the_newest_lines_within_the_limits() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::start(folder.path().join("logs"), BOUND).unwrap();
        let first: FunctionId = "first".parse().unwrap();
        for number in 0..100 {
            append(&files, &first, &format!("{number} {}", "x".repeat(100)));
        }
        let lines = files.read_lines(&first);
        assert!(lines.last().unwrap().text.starts_with("99 "), "{lines:?}");
        assert!(lines.len() >= 5 && total_bytes(&files.folder) <= 4_000);
        for function in 0..20 {
            let id: FunctionId = format!("f{function}").parse().unwrap();
            (0..20).for_each(|_| append(&files, &id, &"y".repeat(100)));
        }
        assert!(total_bytes(&files.folder) <= BOUND.total_bytes);
        assert!(files.read_lines(&first).is_empty(), "the oldest go first");
    }

    #[test]
    fn a_cut_line_is_skipped_and_a_removed_function_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::start(folder.path().to_owned(), BOUND).unwrap();
        let function: FunctionId = "echo".parse().unwrap();
        append(&files, &function, "one");
        let mut file = open_to_append(&log_file(folder.path(), &function)).unwrap();
        file.write_all(b"{\"name\":\n").unwrap();
        append(&files, &function, "two");
        let texts: Vec<_> = files
            .read_lines(&function)
            .into_iter()
            .map(|line| line.text)
            .collect();
        assert_eq!(texts, ["one", "two"]);
        files.remove_function(&function);
        assert!(files.read_lines(&function).is_empty());
    }

    #[test]
    fn files_of_functions_that_are_gone_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::start(folder.path().to_owned(), BOUND).unwrap();
        let (kept, gone): (FunctionId, FunctionId) =
            ("kept".parse().unwrap(), "gone".parse().unwrap());
        append(&files, &kept, "one");
        append(&files, &gone, "two");
        files.remove_others([&kept].into_iter());
        assert_eq!(files.read_lines(&kept).len(), 1);
        assert!(!log_file(folder.path(), &gone).exists());
    }

    #[tokio::test]
    async fn a_disk_that_takes_nothing_loses_lines_only() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::start(folder.path().to_owned(), BOUND).unwrap();
        let function: FunctionId = "echo".parse().unwrap();
        // A file in place of the namespace's folder: every write fails.
        let blocked = folder.path().join(function.namespace.as_str());
        fs::write(&blocked, "").unwrap();
        append(&files, &function, "lost");
        fs::remove_file(&blocked).unwrap();
        eventually("lines are written again", async || {
            append(&files, &function, "kept");
            files
                .read_lines(&function)
                .iter()
                .any(|line| line.text == "kept")
        })
        .await;
        assert!(
            files
                .read_lines(&function)
                .iter()
                .all(|line| line.text == "kept")
        );
    }
}
