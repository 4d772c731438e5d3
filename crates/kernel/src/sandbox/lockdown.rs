//! Giving up power, in the order that each step still has the power it needs itself, and becoming the watchdog.
#![expect(unsafe_code, reason = "execve, dup2 and signal masks have no safe interface")]

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::notes::{IDENTITY_FD, IDENTITY_FD_VARIABLE, NOTES_FD, NOTES_FD_VARIABLE};
use super::orders::Streams;
use super::spec::{Isolation, Spec};
use crate::seccomp::Filters;

/// The highest capability number that the kernel's 64-bit sets can hold.
const MOST_CAPABILITIES: u32 = 63;

/// Gives up user, groups, capabilities and the right to gain any; `/dev/stdout` stays usable.
pub(super) fn drop_power(spec: &Spec) -> io::Result<()> {
    drop_bounding_set()?;
    rustix::thread::clear_ambient_capability_set()?;
    if spec.isolation == Isolation::Root {
        change_user(spec)?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

fn change_user(spec: &Spec) -> io::Result<()> {
    if spec.uid == 0 || spec.gid == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an instance cannot run as root"));
    }
    let (uid, gid) = (Uid::from_raw(spec.uid), Gid::from_raw(spec.gid));
    for stream in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        rustix::fs::fchown(stream, Some(uid), Some(gid))?; // else opening /dev/stdout is refused
    }
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Without privilege (`Isolation::None`) there is nothing to drop from and the kernel refuses: `no_new_privs` does it.
fn drop_bounding_set() -> io::Result<()> {
    for number in 0..=MOST_CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Err(rustix::io::Errno::INVAL) => break, // the kernel knows no higher one
            Err(rustix::io::Errno::PERM) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Limits that hold whatever cgroups there are.
pub(super) fn limit(spec: &Spec) -> io::Result<()> {
    let exactly = |n| Rlimit { current: Some(n), maximum: Some(n) };
    setrlimit(Resource::Core, exactly(0))?; // a core file would hold secrets
    let allowed = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    setrlimit(Resource::Nofile, exactly(spec.open_files.min(allowed)))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

/// Dies with the launcher's thread. A change of user forgets this, so it is asked for again; `alive`, a socket to the
/// launcher, shows one that was gone before the kernel knew.
pub(super) fn die_with_launcher(alive: BorrowedFd<'_>) -> io::Result<()> {
    signal_at_end_of_launcher(Signal::KILL, alive)
}

/// Has the watchdog told of the launcher's end. Its death takes a PID namespace with it; without one the tenant's processes
/// would outlive it, so there it is asked to end, and ends them first.
pub(super) fn end_with_launcher(spec: &Spec, alive: BorrowedFd<'_>) -> io::Result<()> {
    let signal = if spec.isolation == Isolation::None { Signal::TERM } else { Signal::KILL };
    signal_at_end_of_launcher(signal, alive)
}

fn signal_at_end_of_launcher(signal: Signal, alive: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    let mut ends = [PollFd::from_borrowed_fd(alive, PollFlags::empty())];
    match poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
        0 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the node has ended")),
    }
}

/// What exec needs, made before the last step so that nothing is allocated or looked up behind the filter.
pub(super) struct Image {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Image {
    pub(super) fn new(spec: &Spec) -> io::Result<Self> {
        let text =
            |bytes: Vec<u8>| CString::new(bytes).map_err(|_| invalid("an argument or variable holds a NUL byte"));
        let path = match spec.isolation {
            Isolation::None => spec.program.as_os_str().as_bytes().to_vec(),
            _ => Spec::WATCHDOG.into(),
        };
        let arguments = spec.arguments.iter().map(|argument| text(argument.clone().into_bytes()));
        let mut variables = spec.environment.clone();
        variables.insert(NOTES_FD_VARIABLE.into(), NOTES_FD.to_string());
        variables.insert(IDENTITY_FD_VARIABLE.into(), IDENTITY_FD.to_string());
        let environment = variables.iter().map(|(name, value)| text(format!("{name}={value}").into_bytes()));
        Ok(Self {
            path: text(path.clone())?,
            arguments: std::iter::once(text(path)).chain(arguments).collect::<io::Result<_>>()?,
            environment: environment.collect::<io::Result<_>>()?,
        })
    }

    /// Puts the seccomp list in force and becomes the program; returns only to say why not.
    pub(super) fn execute(&self, filters: &Filters) -> io::Result<Infallible> {
        let pointers = |texts: &[CString]| -> Vec<_> {
            texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
        };
        let (argv, envp) = (pointers(&self.arguments), pointers(&self.environment));
        filters.apply()?;
        // SAFETY: path, argv and envp are NUL-terminated and live until execve has replaced or refused them.
        unsafe { libc::execve(self.path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        Err(io::Error::last_os_error())
    }
}

/// Resets what this program's runtime changed: SIGPIPE ignored; and signals that the node may have blocked.
pub(super) fn reset_signals() {
    // SAFETY: the set is initialised by sigemptyset before it is read; this process has one thread.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Keeps the descriptors of notes and identity free of anything that is opened from now on.
pub(super) fn reserve_descriptors() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for kept in [NOTES_FD, IDENTITY_FD] {
        if null.as_raw_fd() != kept {
            place(null.as_raw_fd(), kept)?;
        }
    }
    if [NOTES_FD, IDENTITY_FD].contains(&null.as_raw_fd()) {
        let _ = null.into_raw_fd(); // it is one of them, and stays
    }
    Ok(())
}

/// Puts the streams on their descriptors, notes and identity on those that [`reserve_descriptors`] kept, and standard
/// input on `/dev/null`.
pub(super) fn arrange_descriptors(streams: &Streams<OwnedFd>) -> io::Result<OwnedFd> {
    place(NOTES_FD, 0)?;
    place(streams.stdout.as_raw_fd(), 1)?;
    place(streams.stderr.as_raw_fd(), 2)?;
    place(streams.notes.as_raw_fd(), NOTES_FD)?;
    place(streams.identity.as_raw_fd(), IDENTITY_FD)?;
    // SAFETY: `reserve_descriptors` gave this descriptor up, so the value returned is its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(NOTES_FD) })
}

/// Has everything but the first five descriptors closed at exec, also what a careless library left open.
pub(super) fn close_rest_at_exec() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: close_range takes no memory; marking descriptors takes none from its owner.
    match unsafe { libc::syscall(libc::SYS_close_range, IDENTITY_FD + 1, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn place(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes no memory; `to` is a standard stream, NOTES_FD or IDENTITY_FD, which no value in this process owns.
    if unsafe { libc::dup2(from, to) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
