//! Tests in a child process, which is killed or sees another disk.

use std::path::Path;
use std::process::Stdio;

use nearpath_testkit::within;
use tokio::process::Command;

const FOLDER_VARIABLE: &str = "NEARPATH_TEST_FOLDER";

/// This test binary, running one ignored test on `folder`, with `wrapper` in front of its command
/// line.
pub(crate) fn child_command(wrapper: &[&str], test: &str, folder: &Path) -> Command {
    let me = std::env::current_exe()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let line: Vec<&str> = wrapper
        .iter()
        .copied()
        .chain([me.as_str(), "--exact", test, "--ignored", "--nocapture"])
        .collect();
    let mut command = Command::new(line[0]);
    command
        .args(&line[1..])
        .env(FOLDER_VARIABLE, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs the command to its end, which must be a success.
pub(crate) async fn assert_success(mut command: Command) {
    let output = within(command.stderr(Stdio::piped()).output())
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{out}\n{err}"
    );
}

/// Folder of a child; `None` when a user runs the ignored tests by hand.
pub(crate) fn child_folder() -> Option<std::path::PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).map(Into::into)
}
