//! Sockets on which the endpoints of an instance connect.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// Endpoints of one instance that may wait to be accepted.
const LISTEN_BACKLOG: i32 = 64;

/// Socket on which the endpoints of an instance connect.
#[derive(Debug)]
pub enum EndpointSocket {
    /// A listening SOCK_SEQPACKET socket: every client is that instance.
    Listening(OwnedFd),
    /// A connected socket: one endpoint.
    Connected(OwnedFd),
}

impl EndpointSocket {
    /// Listens at `path` in an existing folder, replacing an old socket. The bind goes through the
    /// folder's descriptor, because a socket path has at most 107 bytes (unix(7)).
    ///
    /// # Errors
    /// When the folder does not exist, or refuses a socket.
    pub fn listen_at(path: &Path) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let opened = File::open(folder)?;
        let short = Path::new("/proc/self/fd")
            .join(opened.as_raw_fd().to_string())
            .join(name);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // Left by an earlier run; a file that cannot be removed makes `bind` fail.
        let _ = fs::remove_file(path);
        bind(&socket, &SocketAddrUnix::new(short)?)?;
        listen(&socket, LISTEN_BACKLOG)?;
        Ok(Self::Listening(socket))
    }
}
