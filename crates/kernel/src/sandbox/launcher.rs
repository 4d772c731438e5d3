//! The thread that launches instances, and the zygote that it forks them from.
//!
//! The zygote is this program, executed once as `instance-init`. It is small and has one thread, so
//! forking it costs 0.1 ms. Executing a program anew costs most of 1 ms.
//!
//! Children still have the launcher as parent (`CLONE_PARENT`), and ask the kernel to kill them
//! when that *thread* ends. The thread lives as long as the node. Dropping the launcher, or killing
//! the node, ends every instance.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::INIT_ARGUMENT;
use super::attach_wait;
use super::spec::{IsolationLevel, SandboxSpec};
use super::zygote_protocol::{self, ChildPipes};
use crate::seccomp::SeccompFilters;

/// A child that is becoming an instance.
#[derive(Debug)]
pub struct LaunchedInstance {
    /// Process id in the node's PID namespace. The process stays a zombie until it is waited for.
    pub pid: u32,
    /// Handle for waiting and killing without races.
    pub pidfd: OwnedFd,
    /// Reading end of its standard output.
    pub stdout: OwnedFd,
    /// Reading end of its standard error.
    pub stderr: OwnedFd,
    /// Reading end of its [`super::StartNote`]s.
    pub notes: OwnedFd,
    /// The node's end of the socket that brings the watchdog its identity: `contract/identity.md`.
    /// Writing to it is optional.
    pub identity: OwnedFd,
    /// Socket that receives its listener, if its spec asks for one:
    /// [`crate::seccomp::handover::receive_listener`]. Dropping it makes connect() in the instance
    /// fail.
    pub listener: Option<OwnedFd>,
    /// Socket that receives the node's inner sockets, if its spec has any:
    /// [`super::inner_socket::receive_next`].
    pub inner_sockets: Option<OwnedFd>,
    /// Socket that receives the gateway's listener, if its spec asks for one:
    /// [`super::inner_socket::receive_next`].
    pub gateway_listener: Option<OwnedFd>,
}

/// The node's end of the attach wait, if a forwarder is to be attached.
type AttachSocket = Option<OwnedFd>;

/// Launches instances. Dropping it ends them.
#[derive(Debug)]
pub struct InstanceLauncher {
    jobs: Option<mpsc::Sender<LaunchJob>>,
    thread: Option<JoinHandle<()>>,
}

struct LaunchJob {
    spec: SandboxSpec,
    reply: mpsc::SyncSender<io::Result<(LaunchedInstance, AttachSocket)>>,
}

impl InstanceLauncher {
    /// Starts the thread and the zygote.
    ///
    /// # Errors
    /// Fails without the program or its cgroup, or without a free thread, process, descriptor or memory.
    pub fn start(program: ZygoteProgram) -> io::Result<InstanceLauncher> {
        let filters = zygote_protocol::create_memfd(
            "seccomp",
            &SeccompFilters::compile()
                .map_err(io::Error::other)?
                .to_bytes(),
        )?;
        let (jobs, work) = mpsc::channel();
        let (start_sender, start_result) = mpsc::sync_channel(1);
        let run = move || match LauncherThread::new(program, filters) {
            Ok(launcher) => {
                let _ = start_sender.send(Ok(()));
                launcher.run(&work);
            }
            Err(error) => drop(start_sender.send(Err(error))),
        };
        let thread = thread::Builder::new().name("launcher".into()).spawn(run)?;
        start_result.recv().map_err(|_| launcher_ended())??;
        Ok(InstanceLauncher {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Launches an instance and returns once its process exists, long before it is ready. With a
    /// forwarder it returns once that is attached.
    ///
    /// Blocks for about a millisecond, or longer when more instances are starting than there are
    /// cores.
    ///
    /// # Errors
    /// Fails when the child cannot be created or the spec lacks its hub. Later failures are
    /// reported in a note.
    pub fn launch_instance(&self, spec: &SandboxSpec) -> io::Result<LaunchedInstance> {
        let (reply, launched) = mpsc::sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or_else(launcher_ended)?;
        jobs.send(LaunchJob {
            spec: spec.clone(),
            reply,
        })
        .map_err(|_| launcher_ended())?;
        let (launched, attach_socket) = launched.recv().map_err(|_| launcher_ended())??;
        if let Some(attach_socket) = attach_socket {
            attach_wait::attach_when_ready(attach_socket, spec);
        }
        Ok(launched)
    }
}

impl Drop for InstanceLauncher {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // the thread has printed its panic
        }
    }
}

fn launcher_ended() -> io::Error {
    io::Error::other("the launcher's thread has ended; restart the node")
}

/// The program that becomes the zygote. It must call [`super::instance_init`].
#[derive(Debug, Clone)]
pub struct ZygoteProgram {
    /// Path of the program.
    pub path: PathBuf,
    /// Arguments, without its name.
    pub arguments: Vec<OsString>,
    /// Folder of a threaded cgroup into which the launcher moves the zygote; its children inherit it.
    pub cgroup: Option<PathBuf>,
}

impl ZygoteProgram {
    /// Returns a program with `instance-init` as its only argument.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            arguments: vec![INIT_ARGUMENT.into()],
            cgroup: None,
        }
    }
}

impl Default for ZygoteProgram {
    /// The running program.
    fn default() -> Self {
        Self::at("/proc/self/exe")
    }
}

/// State of the launcher's thread.
struct LauncherThread {
    program: ZygoteProgram,
    /// The compiled seccomp filters, for every zygote.
    filters: OwnedFd,
    zygote: Zygote,
    limiter: StartLimiter,
}

impl LauncherThread {
    fn new(program: ZygoteProgram, filters: OwnedFd) -> io::Result<Self> {
        let zygote = Zygote::start(&program, &filters)?;
        Ok(Self {
            program,
            filters,
            zygote,
            limiter: StartLimiter::default(),
        })
    }

    fn run(mut self, work: &mpsc::Receiver<LaunchJob>) {
        for LaunchJob { spec, reply } in work {
            // without a receiver the child loses its pipes and ends
            let _ = reply.send(self.launch_limited(&spec));
        }
    }

    fn launch_limited(
        &mut self,
        spec: &SandboxSpec,
    ) -> io::Result<(LaunchedInstance, AttachSocket)> {
        if has_network(spec)
            && spec
                .network
                .as_ref()
                .is_some_and(|network| network.hub.is_none())
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the spec has a network but no hub",
            ));
        }
        self.limiter.wait_for_slot()?;
        match self.request_child(spec) {
            // The zygote was killed, by a user or for lack of memory. It has no state, so a new one
            // replaces it.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                self.zygote = Zygote::start(&self.program, &self.filters)?;
                self.request_child(spec)
            }
            other => other,
        }
    }

    fn request_child(
        &mut self,
        spec: &SandboxSpec,
    ) -> io::Result<(LaunchedInstance, AttachSocket)> {
        let (stdout, stdout_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, stderr_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let (notes, notes_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let (identity_end, identity) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (start_end, started) = pipe_with(PipeFlags::CLOEXEC)?;
        let streams = ChildPipes {
            stdout: stdout_end,
            stderr: stderr_end,
            notes: notes_end,
            identity: identity_end,
            started,
        };
        let (attach_socket, attach_end) = attach_sockets(spec)?.unzip();
        let (listener, listener_end) = handover_sockets(spec.intercept_connects)?.unzip();
        let (inner_sockets, inner_end) = handover_sockets(has_inner_sockets(spec))?.unzip();
        let has_gateway = has_network(spec) && spec.gateway_listener.is_some();
        let (gateway_listener, gateway_end) = handover_sockets(has_gateway)?.unzip();
        zygote_protocol::send_request(
            self.zygote.socket.as_fd(),
            spec,
            &streams,
            [&listener_end, &inner_end, &gateway_end, &attach_end].map(Option::as_ref),
        )?;
        drop((streams, attach_end, listener_end, inner_end, gateway_end));
        let (pid, pidfd) = zygote_protocol::receive_reply(self.zygote.socket.as_fd())?;
        self.limiter.starting.push_back(start_end);
        Ok((
            LaunchedInstance {
                pid,
                pidfd,
                stdout,
                stderr,
                notes,
                identity,
                listener,
                inner_sockets,
                gateway_listener,
            },
            attach_socket,
        ))
    }
}

/// Creates a socket pair for the attach wait, if the spec has a forwarder.
fn attach_sockets(spec: &SandboxSpec) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let wanted = spec
        .network
        .as_ref()
        .is_some_and(|network| network.forwarder.is_some());
    match wanted && spec.isolation != IsolationLevel::None {
        true => Ok(Some(socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?)),
        false => Ok(None),
    }
}

/// Returns whether the instance has a network of its own, which the node reaches.
fn has_network(spec: &SandboxSpec) -> bool {
    spec.isolation != IsolationLevel::None && spec.network.is_some()
}

/// Returns whether the node has sockets inside.
fn has_inner_sockets(spec: &SandboxSpec) -> bool {
    let wanted = spec
        .network
        .as_ref()
        .is_some_and(|network| !network.inner_sockets.is_empty());
    wanted && spec.isolation != IsolationLevel::None
}

/// Creates a socket pair over which the child sends descriptors.
fn handover_sockets(wanted: bool) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    match wanted {
        true => Ok(Some(socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?)),
        false => Ok(None),
    }
}

/// The process that forks instances. It ends when its socket is closed.
struct Zygote {
    socket: OwnedFd,
    process: Child,
}

impl Zygote {
    fn start(program: &ZygoteProgram, filters: &OwnedFd) -> io::Result<Self> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        zygote_protocol::send_message(socket.as_fd(), b"f", &[filters.as_fd()])?;
        let mut command = Command::new(&program.path);
        command
            .args(&program.arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null());
        let zygote = Self {
            socket,
            process: command.spawn()?,
        };
        if let Some(folder) = &program.cgroup {
            // Before the first instance is requested. The zygote has one thread.
            fs::write(
                folder.join("cgroup.threads"),
                zygote.process.id().to_string(),
            )?;
        }
        Ok(zygote)
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended already
        let _ = self.process.wait();
    }
}

/// Limits the number of starting instances. More than there are cores would all finish later: they
/// wait for each other on the kernel's network lock.
#[derive(Default)]
struct StartLimiter {
    starting: VecDeque<OwnedFd>,
}

impl StartLimiter {
    /// Waits until fewer instances are starting than there are cores. An instance that takes a
    /// second is no longer counted.
    fn wait_for_slot(&mut self) -> io::Result<()> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        while self.starting.len() >= cores {
            // Hang-up is always reported: the child closes its end at exec, or when it dies.
            let mut ends: Vec<_> = self
                .starting
                .iter()
                .map(|start_end| PollFd::new(start_end, PollFlags::empty()))
                .collect();
            let ready = poll(
                &mut ends,
                Some(&Timespec {
                    tv_sec: 1,
                    tv_nsec: 0,
                }),
            )?;
            let closed: Vec<_> = ends.iter().map(|end| !end.revents().is_empty()).collect();
            let mut closed = closed.into_iter();
            self.starting.retain(|_| !closed.next().unwrap_or(false));
            if ready == 0 {
                self.starting.pop_front();
            }
        }
        Ok(())
    }
}
