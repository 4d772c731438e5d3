//! Heartbeats of a local worker.

use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use super::value_error;

/// Writes `number` to the pipe `file` each `interval` seconds, until the process ends. A thread
/// without the interpreter: code that holds the interpreter's lock for long is no silence.
#[pyfunction]
pub(crate) fn start_heartbeat(file: i32, number: u32, interval: f64) -> PyResult<()> {
    let interval = Duration::try_from_secs_f64(interval).map_err(value_error)?;
    // Opened by its path: taking over the number of a descriptor would be unsafe.
    let mut pipe = File::options()
        .write(true)
        .open(format!("/proc/self/fd/{file}"))?;
    let send = move || {
        // Fails when the job has ended, the pipe's only reader. This process ends as well then.
        while pipe.write_all(&number.to_le_bytes()).is_ok() {
            thread::sleep(interval);
        }
    };
    thread::Builder::new()
        .name("heartbeat".to_owned())
        .spawn(send)?;
    Ok(())
}
