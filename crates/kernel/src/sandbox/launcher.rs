//! The thread that starts instances, and the template that it forks them from.
//!
//! The template is this program, executed once as `instance-init`: a small process with one thread, so a fork of it costs a
//! tenth of a millisecond, where loading a program anew costs most of one. Children are the launcher's own all the same
//! (`CLONE_PARENT`): they ask the kernel to be killed when the *thread* that counts as their parent ends. It lives as long
//! as the node; dropping the launcher, or killing the node, ends every instance.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::INIT_ARGUMENT;
use super::guard;
use super::orders::{self, Streams};
use super::spec::{Isolation, Spec};
use crate::seccomp::Filters;

/// A child that is on its way to become an instance.
#[derive(Debug)]
pub struct Launched {
    /// Its process id, as the node sees it. It stays a zombie until somebody waits for it.
    pub pid: u32,
    /// For waiting and killing without races.
    pub pidfd: OwnedFd,
    /// What it and the tenant's code write to standard output.
    pub stdout: OwnedFd,
    /// What they write to standard error.
    pub stderr: OwnedFd,
    /// Notes about its start: [`super::Note`].
    pub notes: OwnedFd,
    /// The node's end of the socket at which the watchdog hears who it is: `contract/identity.md`. Nothing need be written.
    pub identity: OwnedFd,
    /// Where its listener arrives, if its spec asks for one: [`crate::seccomp::handover::receive`]. Who drops it has the instance's connects fail.
    pub listener: Option<OwnedFd>,
    /// Where the node's sockets inside arrive, if its spec has hatches: [`super::hatch::receive`].
    pub hatches: Option<OwnedFd>,
}

/// Where a child asks for the forwarder, if its pair is to have one.
type Guard = Option<OwnedFd>;

/// Starts instances.
#[derive(Debug)]
pub struct Launcher {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    spec: Spec,
    answer: mpsc::SyncSender<io::Result<(Launched, Guard)>>,
}

impl Launcher {
    /// Starts the thread and the template: the calling program with `instance-init` as its only argument.
    ///
    /// # Errors
    /// When there is no thread, process, descriptor or memory to be had.
    pub fn start() -> io::Result<Launcher> {
        Self::with_program(Path::new("/proc/self/exe"), [INIT_ARGUMENT])
    }

    /// Like [`Launcher::start`] with another program as the template; it must call [`super::instance_init`].
    ///
    /// # Errors
    /// As [`Launcher::start`], and when there is no such program.
    pub fn with_program<A: AsRef<OsStr>>(path: &Path, arguments: impl IntoIterator<Item = A>) -> io::Result<Launcher> {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let program = Program { path: path.to_owned(), arguments };
        let filters = orders::memfd("seccomp", &Filters::compile().map_err(io::Error::other)?.to_bytes())?;
        let (jobs, work) = mpsc::channel();
        let (began, begun) = mpsc::sync_channel(1);
        let run = move || match Bench::new(program, filters) {
            Ok(bench) => {
                let _ = began.send(Ok(()));
                bench.run(&work);
            }
            Err(error) => drop(began.send(Err(error))),
        };
        let thread = thread::Builder::new().name("launcher".into()).spawn(run)?;
        begun.recv().map_err(|_| ended())??;
        Ok(Launcher { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Starts an instance; returns once its process exists, long before it is ready. Blocks for about a millisecond, and
    /// for longer when more instances are under construction than there are cores: call it where blocking is allowed. With
    /// a forwarder it returns once that stands at the instance's pair.
    ///
    /// # Errors
    /// When the child cannot be made or the spec lacks its switch. What fails later is told by a note.
    pub fn launch(&self, spec: &Spec) -> io::Result<Launched> {
        let (answer, launched) = mpsc::sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(Job { spec: spec.clone(), answer }).map_err(|_| ended())?;
        let (launched, guard) = launched.recv().map_err(|_| ended())??;
        if let Some(guard) = guard {
            guard::stand(guard, spec);
        }
        Ok(launched)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there has been printed
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the launcher's thread has ended")
}

struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// What the thread works with.
struct Bench {
    program: Program,
    /// The compiled seccomp list, for every template.
    filters: OwnedFd,
    template: Template,
    gates: Gates,
}

impl Bench {
    fn new(program: Program, filters: OwnedFd) -> io::Result<Self> {
        let template = Template::start(&program, &filters)?;
        Ok(Self { program, filters, template, gates: Gates::default() })
    }

    fn run(mut self, work: &mpsc::Receiver<Job>) {
        for Job { spec, answer } in work {
            let _ = answer.send(self.launch(&spec)); // nobody may be waiting any more: the child then loses its pipes
        }
    }

    fn launch(&mut self, spec: &Spec) -> io::Result<(Launched, Guard)> {
        let networked = spec.isolation != Isolation::None && spec.network.is_some();
        if networked && spec.network.as_ref().is_some_and(|network| network.switch.is_none()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a spec with a network needs its switch"));
        }
        self.gates.wait()?;
        match self.order(spec) {
            // Killed by somebody, or by the kernel when memory ran out. It held nothing: another one takes its place.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                self.template = Template::start(&self.program, &self.filters)?;
                self.order(spec)
            }
            other => other,
        }
    }

    fn order(&mut self, spec: &Spec) -> io::Result<(Launched, Guard)> {
        let (stdout, out) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, err) = pipe_with(PipeFlags::CLOEXEC)?;
        let (notes, note) = pipe_with(PipeFlags::CLOEXEC)?;
        let (who, identity) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (gate, hold) = pipe_with(PipeFlags::CLOEXEC)?;
        let streams = Streams { stdout: out, stderr: err, notes: note, identity: who, gate: hold };
        let (guard, asks) = guarded(spec)?.unzip();
        let (listener, hands) = handed(spec.listened)?.unzip();
        let (hatches, opens) = handed(hatched(spec))?.unzip();
        orders::send(self.template.socket.as_fd(), spec, &streams, [&hands, &opens, &asks].map(Option::as_ref))?;
        drop((streams, asks, hands, opens));
        let (pid, pidfd) = orders::answered(self.template.socket.as_fd())?;
        self.gates.open.push_back(gate);
        Ok((Launched { pid, pidfd, stdout, stderr, notes, identity, listener, hatches }, guard))
    }
}

/// The node's end and the child's, where a forwarder is to stand at the pair.
fn guarded(spec: &Spec) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let wanted = spec.network.as_ref().is_some_and(|network| network.forwarder.is_some());
    match wanted && spec.isolation != Isolation::None {
        true => Ok(Some(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)),
        false => Ok(None),
    }
}

/// Whether the node has sockets inside.
fn hatched(spec: &Spec) -> bool {
    let wanted = spec.network.as_ref().is_some_and(|network| !network.hatches.is_empty());
    wanted && spec.isolation != Isolation::None
}

/// The node's end and the child's, where the child is to hand something over.
fn handed(wanted: bool) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    match wanted {
        true => Ok(Some(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)),
        false => Ok(None),
    }
}

/// The process that forks instances. It ends when its socket does.
struct Template {
    socket: OwnedFd,
    process: Child,
}

impl Template {
    fn start(program: &Program, filters: &OwnedFd) -> io::Result<Self> {
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        orders::put(socket.as_fd(), b"f", &[filters.as_fd()])?;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).env_clear().current_dir("/").stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let process = command.spawn()?;
        Ok(Self { socket, process })
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended by itself
        let _ = self.process.wait();
    }
}

/// Instances under construction. More at once than there are cores would finish later, all of them: they would wait for one
/// another in the kernel's network lock.
#[derive(Default)]
struct Gates {
    open: VecDeque<OwnedFd>,
}

impl Gates {
    /// Waits until there are fewer than cores. One that takes a second is not waited for: something is wrong with it.
    fn wait(&mut self) -> io::Result<()> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        while self.open.len() >= cores {
            let mut ends: Vec<_> = self.open.iter().map(|gate| PollFd::new(gate, PollFlags::empty())).collect();
            let ready = poll(&mut ends, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }))?;
            let closed: Vec<_> = ends.iter().map(|end| !end.revents().is_empty()).collect();
            let mut closed = closed.into_iter();
            self.open.retain(|_| !closed.next().unwrap_or(false));
            if ready == 0 {
                self.open.pop_front();
            }
        }
        Ok(())
    }
}
