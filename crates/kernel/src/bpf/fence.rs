//! Sockets that stay with the thread that made them; see `bpf/sock_fence.c`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::Array;
use aya::programs::{CgroupAttachMode, CgroupSockAddr, ProgramError};
use rustix::thread::gettid;

use super::object::{self, load, refused};
use super::window;
use crate::cgroup::own_unified_group;

/// Begins the names of the groups; a process id ends them.
const NAME: &str = "nearpath-pool-";
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
        sweep(&home);
        let number = gettid().as_raw_nonzero();
        let folder = home.join(format!("{NAME}{}-{number}", std::process::id()));
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        fs::create_dir(&folder).map_err(at)?;
        let joined = fs::write(folder.join("cgroup.type"), "threaded").and_then(|()| enter(&folder)).map_err(at);
        match joined.and_then(|()| File::open(&folder)).and_then(|group| Ok((attach(&group)?, window::attach(&group))))
        {
            Ok((_loaded, windows)) => Ok(Self { folder, _loaded, windows }),
            Err(error) => {
                leave(&folder);
                Err(error)
            }
        }
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

/// Goes back to the group above and removes this one. What cannot be removed, because another thread is still in it, the next start removes.
fn leave(folder: &Path) {
    let _ = folder.parent().map(enter);
    let _ = fs::remove_dir(folder);
}

/// Removes groups of processes that were killed.
fn sweep(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(NAME)?.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir(entry.path()); // one in use stays
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

    #[test]
    fn nothing_is_left_behind() {
        let folder = thread::spawn(|| Fence::around_this_thread().map(|fence| fence.folder.clone())).join().unwrap();
        match folder {
            Ok(folder) => assert!(!folder.exists()),
            Err(why) => nearpath_testkit::skip!("no fence here: {why}"),
        }
    }
}
