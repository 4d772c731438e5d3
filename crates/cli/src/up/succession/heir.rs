//! The running process's side: it waits for a successor at its door.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{Estate, PATIENCE, Port, Word, door, packet, socket};

/// The process as a successor meets it.
pub(in crate::up) struct Heirs {
    estate: Mutex<Option<Estate>>,
    /// Lets go of the data directory; blocks until that is done.
    release: Box<dyn Fn() + Send + Sync>,
    control: Handle,
}

impl Heirs {
    /// Opens the door. What is returned is ready when a successor has taken over; never, where no door can be made.
    pub(in crate::up) fn wait(
        data_dir: &Path,
        estate: Estate,
        release: impl Fn() + Send + Sync + 'static,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let heirs = Self { estate: Mutex::new(Some(estate)), release: Box::new(release), control: Handle::current() };
        let (heirs, (tell, told)) = (Arc::new(heirs), oneshot::channel());
        let waits = heirs.clone();
        let opened = open(data_dir).and_then(|door| {
            let wait = move || match waits.serve(&door) {
                Ok(()) => drop(tell.send(())), // else the house is going down already
                Err(error) => tracing::warn!(%error, "no process can take over from this one any more"),
            };
            std::thread::Builder::new().name("heirs".to_owned()).spawn(wait)
        });
        if let Err(error) = opened {
            tracing::warn!(%error, "no process can take over from this one");
        }
        (heirs, told)
    }

    /// Until one has taken over.
    fn serve(&self, door: &OwnedFd) -> io::Result<()> {
        loop {
            let heir = rustix::io::retry_on_intr(|| accept_with(door, SocketFlags::CLOEXEC))?;
            if self.hand_over(&heir) {
                return Ok(());
            }
        }
    }

    /// Forgets the sockets: there is nothing to take over any more. The port of HTTP/3 is to be kept until its last connection has ended.
    pub(in crate::up) fn close(&self) -> Option<Port> {
        let mut port = self.estate().take()?.port?;
        port.rest();
        Some(port)
    }

    /// Whether the heir has taken over.
    fn hand_over(&self, heir: &OwnedFd) -> bool {
        let _runtime = self.control.enter();
        let taken = self.walk(heir);
        if let Err(error) = &taken {
            tracing::warn!(%error, "a process that was about to take over did not; serving on");
            if let Some(port) = self.estate().as_mut().and_then(|estate| estate.port.as_mut()) {
                let steered = port.steer();
                port.mourn();
                steered.unwrap_or_else(|error| tracing::error!(%error, "HTTP/3: newcomers are led to nobody"));
            }
        }
        taken.is_ok()
    }

    fn walk(&self, heir: &OwnedFd) -> io::Result<()> {
        [Timeout::Recv, Timeout::Send]
            .into_iter()
            .try_for_each(|side| set_socket_timeout(heir, side, Some(PATIENCE)))?;
        expect(heir, Word::Offer)?;
        self.offer(heir)?;
        tracing::info!("a process is about to take over");
        expect(heir, Word::Release)?;
        (self.release)();
        packet::send(heir, &(), &[])?;
        set_socket_timeout(heir, Timeout::Recv, None)?; // starting instances takes its time; its death is told by the socket
        expect(heir, Word::Go)
    }

    fn offer(&self, heir: &OwnedFd) -> io::Result<()> {
        let mut estate = self.estate();
        let estate = estate.as_mut().ok_or_else(|| io::Error::other("this process is ending"))?;
        if let Some(port) = &mut estate.port {
            port.rest();
        }
        estate.send(heir)
    }

    fn estate(&self) -> MutexGuard<'_, Option<Estate>> {
        self.estate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn expect(heir: &OwnedFd, wanted: Word) -> io::Result<()> {
    match packet::receive::<Word>(heir)?.0 {
        word if word == wanted => Ok(()),
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("it says {other:?} where {wanted:?} is due"))),
    }
}

/// Made under another name, so that nobody else can ever connect: the folder may be open to others.
fn open(data_dir: &Path) -> io::Result<OwnedFd> {
    let (door, hidden) = (door(data_dir), data_dir.join("successor.new"));
    let _ = fs::remove_file(&hidden); // of a process that died here
    let socket = socket()?;
    bind(&socket, &SocketAddrUnix::new(&hidden)?)?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
    listen(&socket, 4)?;
    fs::rename(&hidden, &door)?;
    Ok(socket)
}
