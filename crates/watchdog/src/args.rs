//! Command line of the watchdog. Arguments only query; all settings are environment variables.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::DumpableBehavior;

use crate::config::{self, WatchdogConfig};
use crate::inherited_fds;
use crate::lifecycle;
use crate::oom_counter::OomCounter;
use crate::process_reports::ProcessReports;
use crate::start_notes::StartNotes;

/// Runs the program with this process's arguments and environment. Returns its exit code.
pub fn main() -> ExitCode {
    // First, because the phases reported to the node count from the start of the process.
    let started_at = Instant::now();
    // Before anything else is opened, so that a wrong number cannot be a file of this process.
    let notes = StartNotes::new(inherited_fds::take_inherited_fd("NEARPATH_NOTES_FD"));
    let identity = inherited_fds::take_inherited_fd("NEARPATH_IDENTITY_FD");
    let oom_kill_file = inherited_fds::take_inherited_fd("NEARPATH_OOM_KILL_FD");
    let reports = ProcessReports::new(notes.clone(), OomCounter::new(oom_kill_file));
    match std::env::args().nth(1).as_deref() {
        None => start_watchdog(&notes, reports, identity, started_at),
        Some("-version" | "--version") => {
            print_line(concat!("nearpath-watchdog ", env!("CARGO_PKG_VERSION")))
        }
        Some("-help" | "--help" | "-h") => print_line(&config::keys::help_text()),
        Some("-run-healthcheck" | "--run-healthcheck") => run_health_check(),
        Some(other) => {
            eprintln!(
                "nearpath-watchdog: unknown argument {other:?}; settings are variables, see --help"
            );
            ExitCode::from(2)
        }
    }
}

fn print_line(text: &str) -> ExitCode {
    println!("{text}");
    ExitCode::SUCCESS
}

fn env_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn start_watchdog(
    notes: &StartNotes,
    reports: ProcessReports,
    identity: Option<File>,
    started_at: Instant,
) -> ExitCode {
    if let Err(error) = deny_tracing() {
        return fail_start(notes, &format!("cannot protect its memory: {error}"));
    }
    let config = match WatchdogConfig::read(&env_variable) {
        Ok(config) => config,
        Err(fault) => return fail_start(notes, &fault.to_string()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let local = tokio::task::LocalSet::new(); // an endpoint of shared memory lives on one thread
    match runtime.map(|runtime| {
        local.block_on(
            &runtime,
            lifecycle::run(config, notes, reports, identity, started_at),
        )
    }) {
        Ok(Ok(code)) => code,
        Ok(Err(fault)) => fail_start(notes, &fault.to_string()),
        Err(fault) => fail_start(notes, &format!("cannot start the event loop: {fault}")),
    }
}

/// Closes this process's memory and descriptors to the tenant's code, which has the same user: the
/// node and other functions take the watchdog's word for the platform's (proc_pid_mem(5)).
fn deny_tracing() -> rustix::io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

fn fail_start(notes: &StartNotes, fault: &str) -> ExitCode {
    // stderr reaches the function's log; the note reaches the node, which reports why the start
    // failed.
    eprintln!("nearpath-watchdog: {fault}");
    notes.write_failure(fault);
    ExitCode::FAILURE
}

/// Queries the health of the watchdog on this machine, as a container's health probe does.
fn run_health_check() -> ExitCode {
    let config = match WatchdogConfig::read(&env_variable) {
        Ok(config) => config,
        Err(fault) => {
            eprintln!("nearpath-watchdog: {fault}");
            return ExitCode::FAILURE;
        }
    };
    // The unspecified address is one to bind, not one to connect to.
    let address = if config.bind_address.is_unspecified() {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        config.bind_address
    };
    match request_health(SocketAddr::new(address, config.port)) {
        Ok(head) if head.starts_with("HTTP/1.1 200") => ExitCode::SUCCESS,
        Ok(head) => report_unhealthy(head.lines().next().unwrap_or("no answer")),
        Err(fault) => report_unhealthy(&fault.to_string()),
    }
}

fn report_unhealthy(why: &str) -> ExitCode {
    eprintln!("nearpath-watchdog: unhealthy: {why}");
    ExitCode::FAILURE
}

fn request_health(addr: SocketAddr) -> std::io::Result<String> {
    // A probe that hangs counts as failed, so it gets a limit of its own.
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&addr, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET /_/health HTTP/1.1\r\nHost: watchdog\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    // The status line decides. The bound keeps another server on this port from filling the memory.
    stream.take(4096).read_to_string(&mut answer)?;
    Ok(answer)
}
