//! Counts by other programs: `perf stat` for system calls and context switches, `strace -c` for
//! system calls.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::tracer::interrupt_child;

/// Counts of another tracer, over all processes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TracerCheck {
    pub(crate) calls: Option<f64>,
    pub(crate) switches: Option<f64>,
}

/// Counts with perf while `load` runs. The result is empty without perf.
pub(crate) async fn count_by_perf(
    pids: &BTreeSet<u32>,
    load: impl Future,
) -> io::Result<TracerCheck> {
    let list: Vec<_> = pids.iter().map(u32::to_string).collect();
    let mut command = Command::new("perf");
    command.args([
        "stat",
        "-x",
        ";",
        "-e",
        // The tracepoints that bpftrace counts too: the check is of the counting, not of the
        // events.
        "raw_syscalls:sys_enter,sched:sched_switch",
        "-p",
        &list.join(","),
    ]);
    let text = watch_load(command, load).await?;
    let value = |event: &str| {
        text.lines()
            // The fields of `-x ;` begin with the value (perf-stat(1), CSV format).
            .find(|line| line.contains(event))?
            .split(';')
            .next()?
            .parse()
            .ok()
    };
    Ok(TracerCheck {
        calls: value("sys_enter"),
        switches: value("sched_switch"),
    })
}

/// Counts with strace while `load` runs. strace slows everything down, but its count is
/// independent.
pub(crate) async fn count_by_strace(
    pids: &BTreeSet<u32>,
    load: impl Future,
) -> io::Result<TracerCheck> {
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-U", "calls,name"]);
    command.args(
        pids.iter()
            .flat_map(|pid| ["-p".to_owned(), pid.to_string()]),
    );
    let text = watch_load(command, load).await?;
    let total = text
        .lines()
        // `-U calls,name` leaves two columns, so the number stands before `total`.
        .find_map(|line| line.trim().strip_suffix("total")?.trim().parse().ok());
    Ok(TracerCheck {
        calls: total,
        switches: None,
    })
}

/// Returns the standard error of `command`, which stops after `load`.
async fn watch_load(mut command: Command, load: impl Future) -> io::Result<String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A tracer that outlives a failed run would slow down every later measurement.
        .kill_on_drop(true);
    let child = match command.spawn() {
        Ok(child) => child,
        // The check is optional: the page shows an empty cell.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    sleep(Duration::from_secs(1)).await; // neither reports when it has attached
    load.await;
    interrupt_child(&child)?;
    // strace detaches from each thread before it prints, which takes long with many threads.
    let output = timeout(Duration::from_secs(30), child.wait_with_output())
        .await
        .map_err(io::Error::from)??;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}
