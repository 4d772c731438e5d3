//! The bpftrace process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::count::{self, EventCount};
use super::script;

/// Time limit for bpftrace to start, and to stop.
const TRACER_TIMEOUT: Duration = Duration::from_secs(120);

/// A bpftrace process that counts until [`BpftraceProcess::stop_and_read`].
pub(crate) struct BpftraceProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl BpftraceProcess {
    /// Starts bpftrace for these processes and waits until it counts.
    pub(crate) async fn start(pids: &BTreeSet<u32>) -> io::Result<Self> {
        let mut command = Command::new("bpftrace");
        command
            .args(["-f", "json", "-e", &script::write_script(pids)])
            .stdin(Stdio::null());
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Probes left behind would slow down every system call of the machine.
            .kill_on_drop(true);
        let missing = |error| {
            io::Error::other(format!(
                "cannot start bpftrace: {error}; run apt-get install bpftrace"
            ))
        };
        let mut child = command.spawn().map_err(missing)?;
        let mut lines =
            BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        loop {
            match timeout(TRACER_TIMEOUT, lines.next_line())
                .await
                .map_err(io::Error::from)??
            {
                Some(line) if line.contains("ready") => return Ok(Self { child, lines }),
                // bpftrace prints how many probes it attached before the script's own line.
                Some(_) => {}
                // The end of the output: bpftrace has failed, and its standard error has the cause.
                None => return Err(read_error(child).await),
            }
        }
    }

    /// Stops bpftrace and returns the counts by process.
    pub(crate) async fn stop_and_read(mut self) -> io::Result<BTreeMap<u32, EventCount>> {
        // SIGINT and not SIGKILL: the maps are printed by the END block.
        interrupt_child(&self.child)?;
        let mut text = String::new();
        while let Some(line) = timeout(TRACER_TIMEOUT, self.lines.next_line())
            .await
            .map_err(io::Error::from)??
        {
            text.push_str(&line);
            text.push('\n');
        }
        self.child.wait().await?;
        Ok(count::parse_counts(&text))
    }
}

/// Sends SIGINT, as Ctrl-C does: a tracer then prints its counts and exits.
pub(super) fn interrupt_child(child: &Child) -> io::Result<()> {
    let pid = child
        .id()
        .and_then(|pid| Pid::from_raw(pid.cast_signed()))
        .ok_or(io::ErrorKind::NotFound)?;
    Ok(kill_process(pid, Signal::INT)?)
}

async fn read_error(mut child: Child) -> io::Error {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = timeout(TRACER_TIMEOUT, stderr.read_to_string(&mut text)).await;
    }
    io::Error::other(format!("bpftrace exited before it counted:\n{text}"))
}
