//! Where an instance's parties come from.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

/// Parties of one instance that may be waiting to be let in.
const BACKLOG: i32 = 64;

/// Where an instance's parties come from.
#[derive(Debug)]
pub enum Door {
    /// A listening SOCK_SEQPACKET socket: whoever connects is that instance.
    Listening(OwnedFd),
    /// A connected socket: one party.
    Connected(OwnedFd),
}

impl Door {
    /// Listens at `path`, in a folder that is there; a door that was left there is replaced. The address goes over the folder's
    /// descriptor, because a socket's path may have 107 bytes at most (unix(7)).
    ///
    /// # Errors
    /// When there is no such folder, or no socket may be made in it.
    pub fn at(path: &Path) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let opened = File::open(folder)?;
        let short = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string()).join(name);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let _ = fs::remove_file(path);
        bind(&socket, &SocketAddrUnix::new(short)?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self::Listening(socket))
    }
}
