//! Dropping privileges, in an order in which each step still has what it needs, and becoming the
//! watchdog.
#![expect(
    unsafe_code,
    reason = "execve, dup2 and signal masks have no safe interface"
)]

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::notes::{
    IDENTITY_FD, IDENTITY_FD_VARIABLE, NOTES_FD, NOTES_FD_VARIABLE, OOM_KILL_FD,
    OOM_KILL_FD_VARIABLE,
};
use super::spec::{IsolationLevel, SandboxSpec};
use super::zygote_protocol::ChildPipes;
use crate::seccomp::SeccompFilters;

/// Highest capability number in the kernel's 64-bit sets.
const MAX_CAPABILITY: u32 = 63;

/// Drops user, groups and capabilities, and the right to regain them. `/dev/stdout` stays usable.
pub(super) fn drop_capabilities(spec: &SandboxSpec) -> io::Result<()> {
    drop_bounding_set()?;
    rustix::thread::clear_ambient_capability_set()?;
    if spec.isolation == IsolationLevel::Root {
        change_user(spec)?;
    }
    let empty = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: empty,
        permitted: empty,
        inheritable: empty,
    };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

fn change_user(spec: &SandboxSpec) -> io::Result<()> {
    if spec.uid == 0 || spec.gid == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "an instance cannot run as root: set uid and gid above 0",
        ));
    }
    let (uid, gid) = (Uid::from_raw(spec.uid), Gid::from_raw(spec.gid));
    for stream in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        // Without this, opening /dev/stdout is refused
        rustix::fs::fchown(stream, Some(uid), Some(gid))?;
    }
    rustix::thread::set_thread_groups(&[])?;
    // Groups change before the user, who may not change them any more.
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Empties the bounding set. Without privilege (`IsolationLevel::None`) the kernel refuses, and
/// `no_new_privs` has the same effect.
fn drop_bounding_set() -> io::Result<()> {
    for number in 0..=MAX_CAPABILITY {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Err(rustix::io::Errno::INVAL) => break, // the kernel knows no higher capability
            Err(rustix::io::Errno::PERM) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Sets limits that hold without cgroups.
pub(super) fn set_limits(spec: &SandboxSpec) -> io::Result<()> {
    let fixed_limit = |n| Rlimit {
        current: Some(n),
        maximum: Some(n),
    };
    setrlimit(Resource::Core, fixed_limit(0))?; // a core file could contain secrets
    let allowed = rustix::process::getrlimit(Resource::Nofile)
        .maximum
        .unwrap_or(u64::MAX);
    setrlimit(Resource::Nofile, fixed_limit(spec.open_files.min(allowed)))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

/// Asks the kernel to kill this process with the launcher's thread.
///
/// A change of user clears this, so it is requested again. `alive` is a socket to the launcher: its
/// hang-up shows a launcher that ended before the request.
pub(super) fn die_with_launcher(alive: BorrowedFd<'_>) -> io::Result<()> {
    signal_at_end_of_launcher(Signal::KILL, alive)
}

/// Asks the kernel to signal the watchdog when the launcher ends.
///
/// A PID namespace ends with the watchdog, so it is killed. Without one the tenant's processes
/// would survive, so the watchdog is asked to end them first.
pub(super) fn end_with_launcher(spec: &SandboxSpec, alive: BorrowedFd<'_>) -> io::Result<()> {
    let signal = if spec.isolation == IsolationLevel::None {
        Signal::TERM
    } else {
        Signal::KILL
    };
    signal_at_end_of_launcher(signal, alive)
}

fn signal_at_end_of_launcher(signal: Signal, alive: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    let mut ends = [PollFd::from_borrowed_fd(alive, PollFlags::empty())];
    match poll(
        &mut ends,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )? {
        0 => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::BrokenPipe,
            "the node has ended",
        )),
    }
}

/// Arguments of exec, prepared so that nothing is allocated once the filter is in force.
pub(super) struct ExecImage {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl ExecImage {
    pub(super) fn new(spec: &SandboxSpec) -> io::Result<Self> {
        let text = |bytes: Vec<u8>| {
            CString::new(bytes).map_err(|_| {
                invalid_input("an argument or environment variable contains a NUL byte")
            })
        };
        let path = match spec.isolation {
            IsolationLevel::None => spec.program.as_os_str().as_bytes().to_vec(),
            _ => SandboxSpec::WATCHDOG_PATH.into(),
        };
        let arguments = spec
            .arguments
            .iter()
            .map(|argument| text(argument.clone().into_bytes()));
        let mut variables = spec.environment.clone();
        variables.insert(NOTES_FD_VARIABLE.into(), NOTES_FD.to_string());
        variables.insert(IDENTITY_FD_VARIABLE.into(), IDENTITY_FD.to_string());
        if spec.oom_kill_file.is_some() {
            variables.insert(OOM_KILL_FD_VARIABLE.into(), OOM_KILL_FD.to_string());
        }
        let environment = variables
            .iter()
            .map(|(name, value)| text(format!("{name}={value}").into_bytes()));
        Ok(Self {
            path: text(path.clone())?,
            arguments: std::iter::once(text(path))
                .chain(arguments)
                .collect::<io::Result<_>>()?,
            environment: environment.collect::<io::Result<_>>()?,
        })
    }

    /// Applies the seccomp filters and executes the program; returns only on failure.
    pub(super) fn execute(&self, filters: &SeccompFilters) -> io::Result<Infallible> {
        let pointers = |texts: &[CString]| -> Vec<_> {
            texts
                .iter()
                .map(|text| text.as_ptr())
                .chain(std::iter::once(std::ptr::null()))
                .collect()
        };
        let (argv, envp) = (pointers(&self.arguments), pointers(&self.environment));
        filters.apply_to_thread()?;
        // SAFETY: path, argv and envp are NUL-terminated and live until execve has replaced or
        // refused them.
        unsafe { libc::execve(self.path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        Err(io::Error::last_os_error())
    }
}

/// Resets the signal state of this program's runtime: ignored SIGPIPE, and signals that the node
/// blocked.
pub(super) fn reset_signals() {
    // SAFETY: the set is initialised by sigemptyset before it is read; this process has one thread.
    unsafe {
        let mut empty = std::mem::zeroed();
        libc::sigemptyset(&raw mut empty);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Occupies the descriptors that the watchdog gets, so that nothing else opened has their numbers.
pub(super) fn reserve_descriptors() -> io::Result<()> {
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let kept_fds = [NOTES_FD, IDENTITY_FD, OOM_KILL_FD];
    for kept in kept_fds {
        if null.as_raw_fd() != kept {
            duplicate_onto(null.as_raw_fd(), kept)?;
        }
    }
    if kept_fds.contains(&null.as_raw_fd()) {
        let _ = null.into_raw_fd(); // it is one of them, and stays open
    }
    Ok(())
}

/// Moves the pipes to their descriptors: notes and identity to those that [`reserve_descriptors`]
/// occupied, standard input to `/dev/null`.
pub(super) fn arrange_descriptors(streams: &ChildPipes<OwnedFd>) -> io::Result<OwnedFd> {
    // The reserved descriptor is /dev/null, and is replaced only afterwards.
    duplicate_onto(NOTES_FD, 0)?;
    duplicate_onto(streams.stdout.as_raw_fd(), 1)?;
    duplicate_onto(streams.stderr.as_raw_fd(), 2)?;
    duplicate_onto(streams.notes.as_raw_fd(), NOTES_FD)?;
    duplicate_onto(streams.identity.as_raw_fd(), IDENTITY_FD)?;
    // SAFETY: `reserve_descriptors` gave this descriptor up, so the value returned is its only
    // owner.
    Ok(unsafe { OwnedFd::from_raw_fd(NOTES_FD) })
}

/// Moves the counter of processes killed for lack of memory to its descriptor.
pub(super) fn keep_oom_kill_file(file: BorrowedFd<'_>) -> io::Result<()> {
    duplicate_onto(file.as_raw_fd(), OOM_KILL_FD)
}

/// Closes all descriptors at exec that are not the watchdog's, including those that a library left
/// open.
pub(super) fn close_rest_at_exec(spec: &SandboxSpec) -> io::Result<()> {
    let first = OOM_KILL_FD + i32::from(spec.oom_kill_file.is_some());
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: close_range takes no memory; marking descriptors takes none from its owner.
    match unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn duplicate_onto(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes no memory; `to` is a standard stream or one of the descriptors that
    // `reserve_descriptors` occupied, which no value in this process owns.
    if unsafe { libc::dup2(from, to) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn invalid_input(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
