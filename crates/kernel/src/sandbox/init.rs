//! The child's side: the template, and the few milliseconds between its fork and the watchdog.
//!
//! A child has one thread and one way through: orders, cgroups, network, root, lockdown, exec. Every step that fails ends
//! it with a note that names the step; half-built namespaces go with the process.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use super::guard;
use super::hatch;
use super::lockdown::{self, Image};
use super::network;
use super::notes::Notes;
use super::orders::{self, Order};
use super::root;
use super::spawn::{Forked, fork_sibling};
use super::spec::{Isolation, Spec};
use crate::seccomp::{Filters, handover};

/// Higher than a service's 0: when the machine runs out of memory, an instance goes before the node does.
const OOM_SCORE: &str = "500";

/// Becomes the template of instances, or one of them: to be called first thing in `main`, before any thread or descriptor
/// exists, when the program was started with [`super::INIT_ARGUMENT`]. Returns when the node has ended, or in a child that
/// could not become an instance and has told the node why.
pub fn instance_init() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}; only nearpath itself starts this", super::INIT_ARGUMENT);
            ExitCode::FAILURE
        }
    }
}

/// What a child has beside its order.
struct Kit {
    socket: OwnedFd,
    filters: Filters,
}

fn serve() -> io::Result<()> {
    lockdown::reserve_descriptors()?;
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 5)?;
    lockdown::die_with_launcher(socket.as_fd())?;
    let (_, fds) = orders::take(socket.as_fd(), &mut [0])?;
    let filters = fds.into_iter().next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let filters = Filters::from_bytes(&orders::content(filters.as_fd())?);
    let kit = Kit { socket, filters: filters.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))? };
    while let Some(order) = orders::receive(kit.socket.as_fd())? {
        match fork_sibling(order.own_pids) {
            Ok(Forked::Child) => {
                start(order, &kit);
                break;
            }
            Ok(Forked::Sibling { pid, pidfd }) => orders::answer(kit.socket.as_fd(), Ok((pid, pidfd)))?,
            Err(error) => orders::answer(kit.socket.as_fd(), Err(error))?,
        }
    }
    Ok(())
}

/// Returns only when there is no instance.
fn start(mut order: Order, kit: &Kit) {
    let arranged = lockdown::arrange_descriptors(&order.streams);
    let Ok(pipe) = arranged else { return }; // nobody can be told
    let mut notes = Notes::new(pipe);
    let spec = order.spec();
    let Err(error) = spec.and_then(|spec| become_instance(&spec, &mut order, kit, &mut notes));
    notes.failed(&error.to_string());
}

fn become_instance(spec: &Spec, order: &mut Order, kit: &Kit, notes: &mut Notes) -> io::Result<Infallible> {
    step("process", lockdown::die_with_launcher(kit.socket.as_fd()))?;
    step("process", rustix::process::setsid())?;
    step("cgroup", join_cgroups(spec))?;
    notes.phase("cgroup");
    match spec.isolation {
        Isolation::None => step("scratch", live_in_scratch(spec))?,
        Isolation::Root | Isolation::UserNamespace => {
            build_sandbox(spec, [order.switch.take(), order.guard.take(), order.hatches.take()], notes)?
        }
    }
    step("lockdown", lock_down(spec, kit))?;
    let image = step("lockdown", Image::new(&in_place(spec)))?;
    if let Some(socket) = order.listener.take() {
        // A machine without listeners has told the node so; a node that does not take one is gone, and the instance with it.
        let _ = handover::hand_out(socket);
    }
    notes.phase("lockdown");
    execute(spec, &image, &kit.filters)
}

fn build_sandbox(spec: &Spec, fds: [Option<OwnedFd>; 3], notes: &mut Notes) -> io::Result<()> {
    step("network", connect(spec, fds))?;
    step("hostname", rustix::system::sethostname(spec.hostname.as_bytes()))?;
    notes.phase("network");
    step("root", root::build(spec))?;
    step("workdir", std::env::set_current_dir(&spec.workdir))?;
    notes.phase("root");
    Ok(())
}

fn connect(spec: &Spec, [switch, guard, hatches]: [Option<OwnedFd>; 3]) -> io::Result<()> {
    match (&spec.network, switch) {
        (Some(network), Some(switch)) => {
            let mut socket = network::socket_in(switch)?;
            network::unshare()?;
            network::connect(spec.instance, network, &mut socket, guard.is_some())?;
            if let Some(hatches) = hatches {
                hatch::open(&network.hatches, hatches)?;
            }
            guard.map_or(Ok(()), guard::ask)
        }
        _ => {
            network::unshare()?;
            network::loopback().map(drop)
        }
    }
}

/// Writing `0` moves the writing process.
fn join_cgroups(spec: &Spec) -> io::Result<()> {
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE); // a wish; raising it is never refused
    spec.cgroup.iter().try_for_each(|file| {
        fs::write(file, "0").map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    })
}

/// Without namespaces an instance has a folder of its own at least.
fn live_in_scratch(spec: &Spec) -> io::Result<()> {
    if let Some(scratch) = &spec.scratch {
        let secrets = scratch.join("secrets");
        fs::create_dir_all(&secrets)?;
        root::write_secrets(spec, &secrets)?;
    }
    std::env::set_current_dir(spec.on_host(&spec.workdir))
}

/// The spec as it holds where the program runs: without namespaces, the temporary folder is the scratch one.
fn in_place(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    if let (Isolation::None, Some(scratch)) = (spec.isolation, &spec.scratch) {
        let folder = scratch.to_string_lossy().into_owned();
        spec.environment.entry("TMPDIR".into()).or_insert(folder);
    }
    spec
}

fn lock_down(spec: &Spec, kit: &Kit) -> io::Result<()> {
    lockdown::limit(spec)?;
    lockdown::drop_power(spec)?;
    lockdown::end_with_launcher(spec, kit.socket.as_fd())?;
    lockdown::close_rest_at_exec()
}

fn execute(spec: &Spec, image: &Image, filters: &Filters) -> io::Result<Infallible> {
    lockdown::reset_signals();
    let inside = if spec.isolation == Isolation::None { &spec.program } else { Path::new(Spec::WATCHDOG) };
    step(&format!("exec {}", inside.display()), image.execute(filters))
}

/// Puts the step's name in front of an error.
fn step<T, E: Into<io::Error>>(name: &str, result: Result<T, E>) -> io::Result<T> {
    result.map_err(|error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{name}: {error}"))
    })
}
