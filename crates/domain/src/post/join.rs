//! Becoming a party: hello, welcome, the pool and the desk.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::geometry::Size;
use nearpath_shm::spin::Spin;
use nearpath_shm::{Desk, Member, Party, Pool, Wire};
use nearpath_types::{FunctionId, InstanceId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::inbox::Inbox;
use crate::clock;
use crate::packet::{self, Packet};
use crate::protocol::{Bell, FromNode, FromParty, Hello, Isolation, Mode, OwnPool, VERSION, Welcome};

/// After so long a sleep a party looks at its socket: a node that was killed rings no bell.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);

/// How a party behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// It takes calls for its function.
    pub serves: bool,
    /// It takes calls only while no other party of its instance does.
    pub stands_in: bool,
    /// Longest spin before a sleep; zero: none.
    pub spin: Duration,
    /// Bodies of calls and answers that come in several parts are handed over as they come; see [`super::Rest`]. Without it
    /// they are put together first.
    pub streams: bool,
    /// As `streams`, for calls alone: answers are put together, but those of calls that say otherwise (`as_it_comes`).
    pub calls_stream: bool,
    /// Largest body, of answers, calls and events, that is put together from parts.
    pub largest_body: usize,
    /// How long the node may take to answer the hello.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            serves: true,
            stands_in: false,
            streams: false,
            calls_stream: false,
            spin: nearpath_shm::spin::DEFAULT_BUDGET,
            largest_body: 64 << 20,
            patience: Duration::from_secs(10),
        }
    }
}

/// Why a process is not a party.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The node says so.
    #[error("the node refused this party: {0}")]
    Refused(String),
    /// The node hung up.
    #[error("the node hung up before its welcome")]
    HungUp,
    /// No word from the node.
    #[error("no welcome from the node in time")]
    Silence,
    /// What came is no welcome.
    #[error("the node's welcome cannot be understood: {0}")]
    Nonsense(String),
    /// The kernel's word.
    #[error("cannot join: {0}")]
    Io(#[from] io::Error),
}

/// What the welcome said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the domain.
    pub domain: String,
    /// The party's number.
    pub party: Party,
    /// Its function; none for the gateway.
    pub function: Option<FunctionId>,
    /// Its instance; none for the gateway.
    pub instance: Option<InstanceId>,
}

/// A party that knows nobody yet.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) socket: OwnedFd,
    pub(super) desk: Desk,
    pub(super) member: Arc<Member>,
    pub(super) place: Place,
    /// There when the kernel brings the descriptors.
    pub(super) inbox: Option<Inbox>,
}

/// Connects to the socket at `path`.
pub(super) fn dial(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Says hello; the socket does not block afterwards.
pub(super) fn hello(socket: &OwnedFd, bell: Bell, settings: &Settings) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true)?;
    let Settings { serves, stands_in, .. } = *settings;
    let delivery = vec![Mode::Ring, Mode::Sockmap, Mode::Poll];
    let isolation = vec![Isolation::Shared, Isolation::Strict];
    let hello = Hello { version: VERSION, serves, stands_in, bell, delivery, isolation };
    packet::send(socket, &FromParty::Hello(hello), &[])
}

/// Says hello and waits for the answer; the socket does not block afterwards.
pub(super) fn join(socket: OwnedFd, bell: Bell, settings: &Settings) -> Result<Joined, JoinError> {
    hello(&socket, bell, settings)?;
    let end = clock::within(settings.patience);
    loop {
        let left = clock::until(end);
        if left.is_zero() {
            return Err(JoinError::Silence);
        }
        let timeout = Timespec::try_from(left).ok();
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], timeout.as_ref());
        match packet::receive(&socket) {
            Ok(packet) => {
                if let Some((welcome, descriptors)) = welcome(packet)? {
                    return enter(socket, welcome, descriptors, settings);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The welcome, if the node's first packets hold it already.
pub(super) fn welcome(packet: Option<Packet>) -> Result<Option<(Welcome, Vec<OwnedFd>)>, JoinError> {
    let packet = packet.ok_or(JoinError::HungUp)?;
    match FromNode::read(&packet.bytes) {
        Ok(Some(FromNode::Welcome(welcome))) => Ok(Some((welcome, packet.descriptors))),
        Ok(Some(FromNode::Refused(refused))) => Err(JoinError::Refused(refused.why)),
        Ok(None) => Ok(None),
        Ok(Some(_)) => Err(JoinError::Nonsense("another message before the welcome".into())),
        Err(fault) => Err(JoinError::Nonsense(fault.to_string())),
    }
}

/// Maps what the welcome brought.
pub(super) fn enter(
    socket: OwnedFd,
    welcome: Welcome,
    descriptors: Vec<OwnedFd>,
    settings: &Settings,
) -> Result<Joined, JoinError> {
    let mut descriptors = descriptors.into_iter();
    let missing = || JoinError::Nonsense("a descriptor is missing".into());
    let party = Party::new(welcome.party).ok_or_else(|| JoinError::Nonsense("party 0".into()))?;
    let pool = match welcome.isolation {
        Isolation::Shared => {
            let bytes = usize::try_from(welcome.pool).map_err(|_| JoinError::Nonsense("the pool's size".into()))?;
            Pool::open(descriptors.next().ok_or_else(missing)?, bytes)?
        }
        Isolation::Strict => furnish(&socket, &welcome)?,
        Isolation::Unknown => return Err(JoinError::Nonsense("a kind of domain that was not offered".into())),
    };
    let desk = descriptors.next().ok_or_else(missing)?;
    let (event, wire) = match welcome.delivery {
        Mode::Ring | Mode::Poll => (descriptors.next(), None),
        Mode::Sockmap => (None, Some(Wire::new(descriptors.next().ok_or_else(missing)?, HEARTBEAT)?)),
        Mode::Unknown => return Err(JoinError::Nonsense("a mode of delivery that was not offered".into())),
    };
    let desk = Desk::open(desk, event, Spin::new(settings.spin))?;
    let member = Member::new(Arc::new(pool), party, welcome.bound);
    let inbox = wire.map(|wire| Inbox::new(wire, HEARTBEAT));
    let Welcome { domain, function, instance, .. } = welcome;
    Ok(Joined { socket, desk, member, inbox, place: Place { domain, party, function, instance } })
}

/// Makes the party's own pool and hands it to the node, which gives it to the peers.
fn furnish(socket: &OwnedFd, welcome: &Welcome) -> Result<Pool, JoinError> {
    let sizes: Vec<Size> = welcome.classes.iter().map(|&[size, count]| Size { size, count }).collect();
    let pool = Pool::create_own(&sizes)?;
    let own = OwnPool { bytes: pool.bytes() as u64 };
    packet::send(socket, &FromParty::Pool(own), &[pool.as_fd()])?;
    Ok(pool)
}
