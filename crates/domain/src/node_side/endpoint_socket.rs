//! Sockets on which the endpoints of an instance connect.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{Uid, geteuid};

/// Endpoints of one instance that may wait to be accepted.
const LISTEN_BACKLOG: i32 = 64;

/// Socket on which the endpoints of an instance connect.
#[derive(Debug)]
pub enum EndpointSocket {
    /// A listening SOCK_SEQPACKET socket: every accepted client is that instance.
    Listening(OwnedListener),
    /// A connected socket: one endpoint.
    Connected(OwnedFd),
}

/// A listening socket that serves one user.
#[derive(Debug)]
pub struct OwnedListener {
    pub(super) socket: OwnedFd,
    /// The user of the instance.
    owner: Uid,
}

impl EndpointSocket {
    /// Listens at `path` in an existing folder, replacing an old socket. Only the calling user may
    /// connect.
    ///
    /// # Errors
    /// When the folder does not exist, or refuses a socket.
    pub fn listen_at(path: &Path) -> io::Result<Self> {
        Self::listen_for_user(path, geteuid().as_raw())
    }

    /// Like [`Self::listen_at`]; the user `owner` may connect, too. No other user may: a connection
    /// gets the chain's memory.
    ///
    /// # Errors
    /// As for [`Self::listen_at`].
    pub fn listen_for_user(path: &Path, owner: u32) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let opened = File::open(folder)?;
        // The bind goes through the folder's descriptor, because a socket path has at most 107
        // bytes (unix(7)).
        let short = Path::new("/proc/self/fd")
            .join(opened.as_raw_fd().to_string())
            .join(name);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // Left by an earlier run; a file that cannot be removed makes `bind` fail.
        let _ = fs::remove_file(path);
        bind(&socket, &SocketAddrUnix::new(short)?)?;
        // Before `listen`: until then every connect fails, whatever the mode is.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let owner = Uid::from_raw(owner);
        if geteuid().is_root() {
            chown(path, Some(owner.as_raw()), None)?;
        }
        listen(&socket, LISTEN_BACKLOG)?;
        Ok(Self::Listening(OwnedListener { socket, owner }))
    }
}

/// Returns true if the process `pid` connected the socket, or made the pair.
pub(super) fn is_peer(socket: impl AsFd, pid: u32) -> bool {
    socket_peercred(socket)
        .is_ok_and(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(pid))
}

impl OwnedListener {
    /// Returns whether the process at the other end may have the instance's memory. Without a
    /// sandbox of its own an instance runs as the node's user.
    pub(super) fn admits(&self, peer: impl AsFd) -> io::Result<bool> {
        let uid = socket_peercred(peer)?.uid;
        Ok(uid == self.owner || uid == geteuid())
    }
}
