//! The child's side: the zygote, and the few milliseconds between its fork and the watchdog.
//!
//! A child has one thread and one sequence of steps: spawn request, cgroups, network, root,
//! lockdown, exec. A failing step ends it with a note that names the step. Half-built namespaces
//! end with the process.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use super::attach_wait;
use super::inner_socket;
use super::lockdown::{self, ExecImage};
use super::network;
use super::notes::{NoteWriter, OOM_KILL_FD};
use super::rootfs;
use super::spawn::{ForkResult, fork_sibling};
use super::spec::{IsolationLevel, SandboxSpec};
use super::zygote_protocol::{self, SpawnRequest};
use crate::seccomp::{SeccompFilters, handover};

/// OOM score above a service's 0: when memory runs out, the kernel kills instances before the node.
const OOM_SCORE_ADJ: &str = "500";

/// Becomes the zygote of instances, or one of them.
///
/// Call it first in `main`, before any thread or descriptor exists, when the program was started
/// with [`super::INIT_ARGUMENT`]. Returns when the node has ended, or in a child that failed and
/// reported why.
pub fn instance_init() -> ExitCode {
    match run_zygote() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "{}: {error}; only nearpath itself may start this",
                super::INIT_ARGUMENT
            );
            ExitCode::FAILURE
        }
    }
}

/// Resources of a child besides its request.
struct ChildContext {
    socket: OwnedFd,
    filters: SeccompFilters,
}

fn run_zygote() -> io::Result<()> {
    lockdown::reserve_descriptors()?;
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), OOM_KILL_FD + 1)?;
    lockdown::die_with_launcher(socket.as_fd())?;
    let (_, fds) = zygote_protocol::receive_message(socket.as_fd(), &mut [0])?;
    let filters = fds
        .into_iter()
        .next()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let filters = SeccompFilters::from_bytes(&zygote_protocol::read_memfd(filters.as_fd())?);
    let context = ChildContext {
        socket,
        filters: filters.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?,
    };
    while let Some(request) = zygote_protocol::receive_request(context.socket.as_fd())? {
        match fork_sibling(request.pid_namespace) {
            Ok(ForkResult::Child) => {
                start_child(request, &context);
                break;
            }
            Ok(ForkResult::Sibling { pid, pidfd }) => {
                zygote_protocol::send_reply(context.socket.as_fd(), Ok((pid, pidfd)))?
            }
            Err(error) => zygote_protocol::send_reply(context.socket.as_fd(), Err(error))?,
        }
    }
    Ok(())
}

/// Becomes an instance; returns only on failure.
fn start_child(mut request: SpawnRequest, context: &ChildContext) {
    let pipe = lockdown::arrange_descriptors(&request.pipes);
    // The notes pipe takes over the descriptor that the zygote reserved for it.
    let Ok(pipe) = pipe else { return }; // without the pipe nothing can be reported
    let mut notes = NoteWriter::new(pipe);
    let spec = request.read_spec();
    let Err(error) =
        spec.and_then(|spec| become_instance(&spec, &mut request, context, &mut notes));
    notes.report_failure(&error.to_string());
}

fn become_instance(
    spec: &SandboxSpec,
    request: &mut SpawnRequest,
    context: &ChildContext,
    notes: &mut NoteWriter,
) -> io::Result<Infallible> {
    with_step(
        "process",
        lockdown::die_with_launcher(context.socket.as_fd()),
    )?;
    with_step("process", rustix::process::setsid())?;
    with_step("cgroup", join_cgroups(spec))?;
    notes.end_phase("cgroup");
    match spec.isolation {
        IsolationLevel::None => with_step("scratch", enter_scratch(spec))?,
        IsolationLevel::Root | IsolationLevel::UserNamespace => build_sandbox(
            spec,
            [
                request.hub.take(),
                request.attach_wait.take(),
                request.inner_sockets.take(),
            ],
            notes,
        )?,
    }
    with_step("lockdown", drop_privileges(spec, context))?;
    if let Some((addr, socket)) = spec.gateway_listener.zip(request.gateway_listener.take()) {
        with_step("gateway", inner_socket::open_gateway_listener(addr, socket))?;
    }
    let exec_image = with_step("lockdown", ExecImage::new(&without_namespaces(spec)))?;
    if let Some(socket) = request.listener.take() {
        // Without listener support the node got the error instead. A node that does not receive it
        // is gone, and ends this instance.
        let _ = handover::send_listener(socket);
    }
    notes.end_phase("lockdown");
    exec_watchdog(spec, &exec_image, &context.filters)
}

fn build_sandbox(
    spec: &SandboxSpec,
    fds: [Option<OwnedFd>; 3],
    notes: &mut NoteWriter,
) -> io::Result<()> {
    with_step("network", set_up_network(spec, fds))?;
    with_step(
        "hostname",
        rustix::system::sethostname(spec.hostname.as_bytes()),
    )?;
    notes.end_phase("network");
    with_step("root", rootfs::build_rootfs(spec))?;
    with_step("workdir", std::env::set_current_dir(&spec.workdir))?;
    notes.end_phase("root");
    Ok(())
}

fn set_up_network(
    spec: &SandboxSpec,
    [hub, attach_wait, inner_sockets]: [Option<OwnedFd>; 3],
) -> io::Result<()> {
    match (&spec.network, hub) {
        (Some(network), Some(hub)) => {
            let mut socket = network::open_rtnl_in(hub)?;
            network::unshare_namespaces()?;
            network::build_network(spec.instance, network, &mut socket, attach_wait.is_some())?;
            if let Some(inner_sockets) = inner_sockets {
                inner_socket::open_all(&network.inner_sockets, inner_sockets)?;
            }
            attach_wait.map_or(Ok(()), attach_wait::wait_attached)
        }
        _ => {
            network::unshare_namespaces()?;
            network::set_up_loopback().map(drop)
        }
    }
}

/// Joins the cgroups. Writing `0` moves the writing process.
fn join_cgroups(spec: &SandboxSpec) -> io::Result<()> {
    // best effort; raising the score is never refused
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let with_path = |file: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", file.display()))
    };
    spec.cgroup_join_files
        .iter()
        .try_for_each(|file| fs::write(file, "0").map_err(|error| with_path(file, error)))?;
    // Opened here, because the sandbox has no cgroup file system.
    spec.oom_kill_file.iter().try_for_each(|file| {
        fs::File::open(file)
            .and_then(|opened| lockdown::keep_oom_kill_file(opened.as_fd()))
            .map_err(|error| with_path(file, error))
    })
}

/// Enters the working directory. Without namespaces an instance still has a scratch folder of its
/// own.
fn enter_scratch(spec: &SandboxSpec) -> io::Result<()> {
    if let Some(scratch) = &spec.scratch {
        let secrets = scratch.join("secrets");
        fs::create_dir_all(&secrets)?;
        rootfs::write_secrets(spec, &secrets)?;
    }
    std::env::set_current_dir(spec.host_path(&spec.workdir))
}

/// Adapts the spec to the host's file system: without namespaces, the scratch folder is the
/// temporary one.
fn without_namespaces(spec: &SandboxSpec) -> SandboxSpec {
    let mut spec = spec.clone();
    if let (IsolationLevel::None, Some(scratch)) = (spec.isolation, &spec.scratch) {
        let folder = scratch.to_string_lossy().into_owned();
        spec.environment.entry("TMPDIR".into()).or_insert(folder);
    }
    spec
}

fn drop_privileges(spec: &SandboxSpec, context: &ChildContext) -> io::Result<()> {
    lockdown::set_limits(spec)?;
    // Limits come first: raising the hard limit needs a capability.
    lockdown::drop_capabilities(spec)?;
    // Changing the user clears the parent death signal, so this comes after it.
    lockdown::end_with_launcher(spec, context.socket.as_fd())?;
    lockdown::close_rest_at_exec(spec)
}

fn exec_watchdog(
    spec: &SandboxSpec,
    exec_image: &ExecImage,
    filters: &SeccompFilters,
) -> io::Result<Infallible> {
    lockdown::reset_signals();
    let inside = if spec.isolation == IsolationLevel::None {
        &spec.program
    } else {
        Path::new(SandboxSpec::WATCHDOG_PATH)
    };
    with_step(
        &format!("exec {}", inside.display()),
        exec_image.execute(filters),
    )
}

/// Prefixes an error with the name of its step.
fn with_step<T, E: Into<io::Error>>(name: &str, result: Result<T, E>) -> io::Result<T> {
    result.map_err(|error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{name}: {error}"))
    })
}
