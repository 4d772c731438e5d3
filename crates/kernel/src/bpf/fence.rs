//! Sockets that stay with the thread that made them; see `bpf/sock_fence.c`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::Array;
use aya::programs::{CgroupAttachMode, CgroupSockAddr, ProgramError};
use rustix::io::Errno;
use rustix::thread::gettid;

use super::object::{self, load, refused};
use super::window;
use crate::cgroup::own_unified_group;

/// Begins the names of the groups; the ids of a process and of a thread end them, for people to read.
const NAME: &str = "nearpath-pool-";
/// How often a group is made again that a sweep has taken.
const TRIES: usize = 16;
const HOOKS: [&str; 4] = ["connect4", "connect6", "bind4", "bind6"];

/// A control group of one thread, and of those that it starts: a socket that is made there can be connected and bound there alone, whoever holds it
/// later. Ends with the thread, or with the process.
#[derive(Debug)]
pub struct Fence {
    folder: PathBuf,
    _loaded: Ebpf,
    windows: io::Result<Ebpf>,
}

impl Fence {
    /// Puts the calling thread behind one. To be dropped on the same thread.
    ///
    /// # Errors
    /// Without the programs in this build, `CAP_BPF` and `CAP_NET_ADMIN`, or a unified hierarchy in which this process may make a threaded group.
    pub fn around_this_thread() -> io::Result<Self> {
        let home = own_unified_group()
            .ok_or_else(|| io::Error::other("no unified hierarchy of control groups (cgroup v2)"))?;
        sweep_in(&home);
        let number = gettid().as_raw_nonzero();
        let folder = home.join(format!("{NAME}{}-{number}", std::process::id()));
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        make(&folder).map_err(at)?;
        match File::open(&folder).and_then(|group| Ok((attach(&group)?, window::attach(&group)))) {
            Ok((_loaded, windows)) => Ok(Self { folder, _loaded, windows }),
            Err(error) => {
                leave(&folder);
                Err(error)
            }
        }
    }

    /// Removes what processes that were killed have left behind.
    pub fn sweep() {
        own_unified_group().iter().for_each(|home| sweep_in(home));
    }

    /// Whether the windows of connections that are made here can be opened ([`open_window`](crate::sockets::open_window)).
    ///
    /// # Errors
    /// Without setsockopt hooks that may do so: before Linux 5.15.
    pub fn opens_windows(&self) -> io::Result<()> {
        self.windows.as_ref().map(drop).map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        leave(&self.folder);
    }
}

fn attach(group: &File) -> io::Result<Ebpf> {
    let mut loaded = load(object::sock_fence()?).map_err(|error| refused(&error))?;
    set_home(&mut loaded, group)?;
    for hook in HOOKS {
        hang(&mut loaded, hook, group).map_err(|error| refused(&error))?;
    }
    Ok(loaded)
}

/// Tells programs whose group they serve (`bpf/lib/home.h`).
pub(super) fn set_home(loaded: &mut Ebpf, group: &File) -> io::Result<()> {
    let home = loaded.map_mut("home").ok_or_else(|| io::Error::other("bpf/lib/home.h has no map `home`"))?;
    let number = group.metadata()?.ino();
    let set = Array::try_from(home).and_then(|mut home: Array<_, u64>| home.set(0, number, 0));
    set.map_err(|error| refused(&error))
}

fn hang(loaded: &mut Ebpf, hook: &str, group: &File) -> Result<(), ProgramError> {
    let program = loaded.program_mut(hook).ok_or(ProgramError::InvalidName { name: hook.to_owned() })?;
    let program: &mut CgroupSockAddr = program.try_into()?;
    program.load()?;
    program.attach(group, CgroupAttachMode::Single).map(drop) // a link takes no other mode, and shares the group all the same
}

fn enter(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.threads"), gettid().as_raw_nonzero().to_string())
}

/// Makes a group and enters it. Before that a sweep, of whichever process, takes it for one that was left behind: then it is made again.
fn make(folder: &Path) -> io::Result<()> {
    let mut made = make_once(folder);
    for _ in 1..TRIES {
        if !made.as_ref().is_err_and(was_swept) {
            break;
        }
        made = make_once(folder);
    }
    made
}

fn make_once(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    let entered = fs::write(folder.join("cgroup.type"), "threaded").and_then(|()| enter(folder));
    entered.inspect_err(|_| leave(folder))
}

/// The group is gone, or was when its open file was written to.
fn was_swept(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NODEV].into_iter().any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

/// Goes back to the group above and removes this one. What cannot be removed, because another thread is still in it, the next start removes.
fn leave(folder: &Path) {
    let _ = folder.parent().map(enter);
    let _ = fs::remove_dir(folder);
}

/// Removes groups that nobody is in. The kernel tells: it keeps one that has a thread. A process id would not, for it is given again, and means another
/// process in another container.
fn sweep_in(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(NAME)) {
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

    fn server() -> (TcpListener, SocketAddr) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = server.local_addr().unwrap();
        (server, address)
    }

    fn mapped(address: SocketAddr) -> SocketAddr {
        ("::ffff:127.0.0.1".parse::<std::net::IpAddr>().unwrap(), address.port()).into()
    }

    #[test]
    fn a_socket_goes_nowhere_else_in_other_hands() {
        let ((_peer, address), (_other, elsewhere)) = (server(), server());
        let ((give, take), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        let maker = thread::spawn(move || {
            let fence = Fence::around_this_thread();
            let again = TcpStream::connect(address).unwrap();
            connect_unspec(&again).unwrap();
            connect(&again, &elsewhere).unwrap(); // in the hands that made it
            let made = (TcpStream::connect(address).unwrap(), TcpStream::connect(mapped(address)).unwrap());
            give.send(fence.as_ref().map(|_| made).map_err(ToString::to_string)).unwrap();
            let _ = ended.recv();
        });
        let (v4, v6) = match take.recv().unwrap() {
            Ok(made) => made,
            Err(why) => nearpath_testkit::skip!("no fence here: {why}"),
        };
        let denied = Err(rustix::io::Errno::PERM);
        for (socket, at) in [(v4, elsewhere), (v6, mapped(elsewhere))] {
            connect_unspec(&socket).unwrap();
            assert_eq!(connect(&socket, &at), denied, "{at}");
            assert_eq!(bind(&socket, &SocketAddr::new(at.ip(), 0)), denied, "{at}");
        }
        let free = TcpStream::connect(address).unwrap();
        connect_unspec(&free).unwrap();
        connect(&free, &elsewhere).unwrap(); // what was made elsewhere is nobody's
        drop(end);
        maker.join().unwrap();
    }

    /// A group of a test's own, in which others do not sweep, and one in it as killed processes leave it; `None`: no groups can be made here.
    fn left_behind(of: &str) -> Option<(PathBuf, PathBuf)> {
        let home = own_unified_group()?.join(format!("nearpath-test-{}-{of}", std::process::id()));
        let folder = home.join(format!("{NAME}{of}"));
        fs::create_dir_all(&folder).ok().map(|()| (home, folder))
    }

    #[test]
    fn what_was_left_behind_is_swept_though_its_number_was_given_again() {
        let of = format!("{}-0", std::process::id()); // somebody has that number
        let Some((home, folder)) = left_behind(&of) else {
            nearpath_testkit::skip!("no unified hierarchy to make groups in")
        };
        sweep_in(&home);
        assert!(!folder.exists());
        fs::remove_dir(home).unwrap();
    }

    #[test]
    fn a_group_with_somebody_in_it_is_not_swept() {
        let Some((home, folder)) = left_behind("4194305-0") else {
            nearpath_testkit::skip!("no unified hierarchy to make groups in")
        };
        let mut process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(folder.join("cgroup.procs"), process.id().to_string()).unwrap();
        sweep_in(&home);
        let kept = folder.exists();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(kept);
        // It is empty a few instructions after its process was seen to end, which nothing announces.
        let emptied = (0..1_000).any(|_| {
            sweep_in(&home);
            thread::sleep(std::time::Duration::from_millis(1));
            !folder.exists()
        });
        assert!(emptied);
        fs::remove_dir(home).unwrap();
    }

    #[test]
    fn who_sweeps_takes_no_group_from_who_is_making_one() {
        let (sweeping, going_on) = (std::sync::atomic::AtomicBool::new(true), std::sync::atomic::Ordering::SeqCst);
        let home = own_unified_group();
        let folders = |thread| home.as_ref().map(|home| home.join(format!("{NAME}4194306-{thread}")));
        let made: Vec<io::Result<()>> = thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                while sweeping.load(going_on) {
                    Fence::sweep();
                }
            });
            let makers = [0, 1].map(|thread| {
                let folder = folders(thread);
                scope.spawn(move || {
                    let folder = folder.ok_or(io::ErrorKind::Unsupported)?;
                    (0..500).try_for_each(|_| make(&folder).map(|()| leave(&folder)))
                })
            });
            let made = makers.map(|maker| maker.join().unwrap()).into_iter().collect();
            sweeping.store(false, going_on);
            sweeper.join().unwrap();
            made
        });
        for made in made {
            match made {
                Err(why) if !was_swept(&why) => {
                    nearpath_testkit::skip!("no unified hierarchy to make groups in: {why}")
                }
                made => made.unwrap(),
            }
        }
    }

    #[test]
    fn nothing_is_left_behind() {
        let folder = thread::spawn(|| Fence::around_this_thread().map(|fence| fence.folder.clone())).join().unwrap();
        match folder {
            Ok(folder) => assert!(!folder.exists()),
            Err(why) => nearpath_testkit::skip!("no fence here: {why}"),
        }
    }
}
