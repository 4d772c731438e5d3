//! The command line: it only asks questions; all settings are variables.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::config::{self, Config};
use crate::inherited;
use crate::life;
use crate::notes::Notes;

/// Runs the program with this process's arguments and environment; the result is its exit code.
pub fn main() -> ExitCode {
    let born = Instant::now();
    let notes = Notes::new(inherited::take("NEARPATH_NOTES_FD"));
    let identity = inherited::take("NEARPATH_IDENTITY_FD");
    match std::env::args().nth(1).as_deref() {
        None => start(notes, identity, born),
        Some("-version" | "--version") => say(concat!("nearpath-watchdog ", env!("CARGO_PKG_VERSION"))),
        Some("-help" | "--help" | "-h") => say(&config::keys::help()),
        Some("-run-healthcheck" | "--run-healthcheck") => healthcheck(),
        Some(other) => {
            eprintln!("nearpath-watchdog: unknown argument {other:?}; settings are variables, see --help");
            ExitCode::from(2)
        }
    }
}

fn say(text: &str) -> ExitCode {
    println!("{text}");
    ExitCode::SUCCESS
}

fn variables(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn start(mut notes: Notes, identity: Option<File>, born: Instant) -> ExitCode {
    let config = match Config::read(&variables) {
        Ok(config) => config,
        Err(fault) => return refuse(&mut notes, &fault.to_string()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let local = tokio::task::LocalSet::new(); // a party lives on one thread
    match runtime.map(|runtime| local.block_on(&runtime, life::run(config, &mut notes, identity, born))) {
        Ok(Ok(code)) => code,
        Ok(Err(fault)) => refuse(&mut notes, &fault.to_string()),
        Err(fault) => refuse(&mut notes, &format!("cannot start the event loop: {fault}")),
    }
}

fn refuse(notes: &mut Notes, fault: &str) -> ExitCode {
    eprintln!("nearpath-watchdog: {fault}");
    notes.failed(fault);
    ExitCode::FAILURE
}

/// Asks the watchdog of this machine for its health, as a container's health probe does.
fn healthcheck() -> ExitCode {
    let config = match Config::read(&variables) {
        Ok(config) => config,
        Err(fault) => {
            eprintln!("nearpath-watchdog: {fault}");
            return ExitCode::FAILURE;
        }
    };
    let here = if config.bind.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { config.bind };
    match ask_health(SocketAddr::new(here, config.port)) {
        Ok(head) if head.starts_with("HTTP/1.1 200") => ExitCode::SUCCESS,
        Ok(head) => unhealthy(head.lines().next().unwrap_or("no answer")),
        Err(fault) => unhealthy(&fault.to_string()),
    }
}

fn unhealthy(why: &str) -> ExitCode {
    eprintln!("nearpath-watchdog: unhealthy: {why}");
    ExitCode::FAILURE
}

fn ask_health(addr: SocketAddr) -> std::io::Result<String> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&addr, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET /_/health HTTP/1.1\r\nHost: watchdog\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer)?;
    Ok(answer)
}
