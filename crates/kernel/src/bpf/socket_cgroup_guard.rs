//! Confinement of a thread's sockets to the cgroup that made them; see `bpf/sock_guard.c`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::{CgroupAttachMode, CgroupSockAddr};
use rustix::io::Errno;
use rustix::thread::gettid;

use super::initial_window;
use super::object::{self, bpf_error, load_object, set_owner_cgroup};
use crate::cgroup::own_unified_group;

/// Prefix of the cgroups' names. A process id and a thread id follow, for people to read.
const GROUP_PREFIX: &str = "nearpath-pool-";
/// Attempts to create a cgroup that a concurrent sweep removes.
const MAX_CREATE_ATTEMPTS: usize = 16;
const HOOKS: [&str; 4] = ["connect4", "connect6", "bind4", "bind6"];

/// A cgroup of one thread and of those that it starts.
///
/// Only these threads can connect or bind sockets made there, whoever holds them later. The cgroup
/// ends with the thread or the process.
#[derive(Debug)]
pub struct SocketCgroupGuard {
    folder: PathBuf,
    _loaded: Ebpf,
    window_programs: io::Result<Ebpf>,
}

impl SocketCgroupGuard {
    /// Moves the calling thread into a new guard. Drop the guard on the same thread.
    ///
    /// # Errors
    /// Fails if this build has no BPF programs, or without `CAP_BPF` and `CAP_NET_ADMIN`. Also
    /// fails without a unified hierarchy in which this process may create a threaded cgroup.
    pub fn enter_current_thread() -> io::Result<Self> {
        let folder = enter_new_group()?;
        match File::open(&folder).and_then(|group| {
            Ok((
                attach_hooks(&group)?,
                // Kept as a result: without these programs only initial windows are missing.
                initial_window::attach_programs(&group),
            ))
        }) {
            Ok((_loaded, windows)) => Ok(Self {
                folder,
                _loaded,
                window_programs: windows,
            }),
            Err(error) => {
                leave_group(&folder);
                Err(error)
            }
        }
    }

    /// Removes cgroups that killed processes left behind.
    pub fn sweep_leftovers() {
        own_unified_group()
            .iter()
            .for_each(|parent_group| sweep_folder(parent_group));
    }

    /// Returns the folder of the cgroup.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Checks that initial windows can be set here
    /// ([`set_initial_window`](crate::sockets::set_initial_window)).
    ///
    /// # Errors
    /// Fails before Linux 5.15, whose setsockopt hooks may not call the helpers.
    pub fn check_window_programs(&self) -> io::Result<()> {
        self.window_programs
            .as_ref()
            .map(drop)
            .map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }
}

impl Drop for SocketCgroupGuard {
    fn drop(&mut self) {
        leave_group(&self.folder);
    }
}

fn attach_hooks(group: &File) -> io::Result<Ebpf> {
    let mut loaded = load_object(object::sock_guard()?)?;
    set_owner_cgroup(&mut loaded, group)?;
    for hook in HOOKS {
        attach_hook(&mut loaded, hook, group)?;
    }
    Ok(loaded)
}

/// Attaches the hook of a socket call, such as connect(), to a cgroup.
pub(super) fn attach_hook(loaded: &mut Ebpf, hook: &str, group: &File) -> io::Result<()> {
    let program: &mut CgroupSockAddr = object::program(loaded, hook)?;
    program.load().map_err(|error| bpf_error(&error))?;
    // links allow no other mode, and still share the cgroup with other programs
    let attached = program.attach(group, CgroupAttachMode::Single);
    attached.map(drop).map_err(|error| bpf_error(&error))
}

fn move_current_thread(folder: &Path) -> io::Result<()> {
    fs::write(
        folder.join("cgroup.threads"),
        gettid().as_raw_nonzero().to_string(),
    )
}

/// Moves the calling thread into a new cgroup, and returns its folder. Call [`leave_group`] on the
/// same thread.
pub(super) fn enter_new_group() -> io::Result<PathBuf> {
    let parent_group = own_unified_group()?;
    // Before the own group exists: the sweep removes every empty group.
    sweep_folder(&parent_group);
    let number = gettid().as_raw_nonzero();
    let folder = parent_group.join(format!("{GROUP_PREFIX}{}-{number}", std::process::id()));
    let with_folder =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    create_group(&folder).map_err(with_folder)?;
    Ok(folder)
}

/// Creates a cgroup and enters it. A concurrent sweep of any process may remove the still empty
/// cgroup; then it is created again.
fn create_group(folder: &Path) -> io::Result<()> {
    let mut created = try_create_group(folder);
    for _ in 1..MAX_CREATE_ATTEMPTS {
        if !created.as_ref().is_err_and(was_swept) {
            break;
        }
        created = try_create_group(folder);
    }
    created
}

fn try_create_group(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    let entered = fs::write(folder.join("cgroup.type"), "threaded")
        .and_then(|()| move_current_thread(folder));
    entered.inspect_err(|_| leave_group(folder))
}

/// Returns whether a sweep removed the cgroup, before or while its file was written.
fn was_swept(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NODEV]
        .into_iter()
        .any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

/// Returns to the parent cgroup and removes this one. If another thread is still inside, the next
/// start removes it.
pub(super) fn leave_group(folder: &Path) {
    // Out first: the kernel refuses to remove a group with a thread inside.
    let _ = folder.parent().map(move_current_thread);
    let _ = fs::remove_dir(folder);
}

/// Removes empty cgroups; the kernel refuses to remove others. Process ids decide nothing: they are
/// reused, and differ between containers.
fn sweep_folder(parent_group: &Path) {
    for entry in fs::read_dir(parent_group)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
    {
        if entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(GROUP_PREFIX))
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, connect, connect_unspec};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    fn bind_server() -> (TcpListener, SocketAddr) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = server.local_addr().unwrap();
        (server, address)
    }

    fn mapped_address(address: SocketAddr) -> SocketAddr {
        (
            "::ffff:127.0.0.1".parse::<std::net::IpAddr>().unwrap(),
            address.port(),
        )
            .into()
    }

    #[test]
    fn another_thread_cannot_reconnect_a_guarded_socket() {
        let ((_peer, address), (_other, other_address)) = (bind_server(), bind_server());
        let ((sockets_sender, sockets_receiver), (release_thread, released)) =
            (mpsc::channel(), mpsc::channel::<()>());
        let maker = thread::spawn(move || {
            let guard = SocketCgroupGuard::enter_current_thread();
            let again = TcpStream::connect(address).unwrap();
            connect_unspec(&again).unwrap();
            connect(&again, &other_address).unwrap(); // the owner may reconnect
            let created = (
                TcpStream::connect(address).unwrap(),
                TcpStream::connect(mapped_address(address)).unwrap(),
            );
            sockets_sender
                .send(guard.as_ref().map(|_| created).map_err(ToString::to_string))
                .unwrap();
            let _ = released.recv();
        });
        let (v4, v6) = match sockets_receiver.recv().unwrap() {
            Ok(created) => created,
            Err(why) => nearpath_testkit::skip!("socket guards are unavailable: {why}"),
        };
        let denied = Err(rustix::io::Errno::PERM);
        for (socket, at) in [(v4, other_address), (v6, mapped_address(other_address))] {
            connect_unspec(&socket).unwrap();
            assert_eq!(connect(&socket, &at), denied, "{at}");
            assert_eq!(bind(&socket, &SocketAddr::new(at.ip(), 0)), denied, "{at}");
        }
        let free = TcpStream::connect(address).unwrap();
        connect_unspec(&free).unwrap();
        connect(&free, &other_address).unwrap(); // a socket made outside is not guarded
        drop(release_thread);
        maker.join().unwrap();
    }

    /// Creates a folder that only this test sweeps, and in it a cgroup as killed processes leave
    /// it. Returns `None` where cgroups cannot be created.
    fn create_leftover(suffix: &str) -> Option<(PathBuf, PathBuf)> {
        let parent_group = own_unified_group()
            .ok()?
            .join(format!("nearpath-test-{}-{suffix}", std::process::id()));
        let folder = parent_group.join(format!("{GROUP_PREFIX}{suffix}"));
        fs::create_dir_all(&folder)
            .ok()
            .map(|()| (parent_group, folder))
    }

    #[test]
    fn a_leftover_group_is_swept_although_its_pid_is_in_use() {
        let suffix = format!("{}-0", std::process::id()); // a living process has this pid
        let Some((parent_group, folder)) = create_leftover(&suffix) else {
            nearpath_testkit::skip!("no unified hierarchy to make groups in")
        };
        sweep_folder(&parent_group);
        assert!(!folder.exists());
        fs::remove_dir(parent_group).unwrap();
    }

    #[test]
    fn an_occupied_group_is_not_swept() {
        let Some((parent_group, folder)) = create_leftover("4194305-0") else {
            nearpath_testkit::skip!("no unified hierarchy to make groups in")
        };
        let mut process = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        fs::write(folder.join("cgroup.procs"), process.id().to_string()).unwrap();
        sweep_folder(&parent_group);
        let kept = folder.exists();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(kept);
        // The cgroup becomes empty a few kernel instructions after the process was reaped, without
        // any notification.
        nearpath_testkit::eventually_blocking("the empty cgroup is swept", || {
            sweep_folder(&parent_group);
            !folder.exists()
        });
        fs::remove_dir(parent_group).unwrap();
    }

    #[test]
    fn a_concurrent_sweep_does_not_break_creation() {
        let (sweeping, ordering) = (
            std::sync::atomic::AtomicBool::new(true),
            std::sync::atomic::Ordering::SeqCst,
        );
        let parent_group = own_unified_group().ok();
        let folders = |thread| {
            parent_group
                .as_ref()
                .map(|parent_group| parent_group.join(format!("{GROUP_PREFIX}4194306-{thread}")))
        };
        let created: Vec<io::Result<()>> = thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                while sweeping.load(ordering) {
                    SocketCgroupGuard::sweep_leftovers();
                }
            });
            let makers = [0, 1].map(|thread| {
                let folder = folders(thread);
                scope.spawn(move || {
                    let folder = folder.ok_or(io::ErrorKind::Unsupported)?;
                    (0..500).try_for_each(|_| create_group(&folder).map(|()| leave_group(&folder)))
                })
            });
            let created = makers
                .map(|maker| maker.join().unwrap())
                .into_iter()
                .collect();
            sweeping.store(false, ordering);
            sweeper.join().unwrap();
            created
        });
        for created in created {
            match created {
                Err(why) if !was_swept(&why) => {
                    nearpath_testkit::skip!("no unified hierarchy to make groups in: {why}")
                }
                created => created.unwrap(),
            }
        }
    }

    #[test]
    fn dropping_the_guard_removes_its_group() {
        let folder = thread::spawn(|| {
            SocketCgroupGuard::enter_current_thread().map(|guard| guard.folder.clone())
        })
        .join()
        .unwrap();
        match folder {
            Ok(folder) => assert!(!folder.exists()),
            Err(why) => nearpath_testkit::skip!("socket guards are unavailable: {why}"),
        }
    }
}
