//! Joining a domain: hello, welcome, pool and wakeup cell.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::{EndpointId, PoolEndpoint, SlotPool, SockmapSocket, WakeupCell};
use nearpath_types::{FunctionId, InstanceId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::sockmap_inbox::SockmapInbox;
use crate::clock;
use crate::packet::{self, SocketPacket};
use crate::protocol::{
    DeliveryMode, DomainIsolation, EndpointMessage, HelloMessage, NodeMessage, OwnPoolMessage,
    PROTOCOL_VERSION, WakeupMode, WelcomeMessage,
};

/// Interval at which a sleeping endpoint checks its socket: a killed node wakes no endpoint.
pub(super) const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Behaviour of an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointSettings {
    /// The endpoint serves calls for its function.
    pub serves: bool,
    /// The endpoint serves calls only while no other endpoint of its instance does.
    pub is_standby: bool,
    /// The endpoint never calls: it gets no channels to callees.
    pub serves_only: bool,
    /// Maximum spin before a sleep; zero: none.
    pub max_spin: Duration,
    /// Streams bodies of calls and responses that arrive in parts ([`super::BodyReader`]).
    /// Otherwise they are assembled first.
    pub stream_bodies: bool,
    /// As `stream_bodies`, for calls only: responses are assembled unless the call asks for
    /// streaming.
    pub stream_calls: bool,
    /// Maximum bytes of a body that is assembled from parts.
    pub max_body_bytes: usize,
    /// Takes events for other nodes, from functions that it does not trust: few incomplete ones at a
    /// time, and refused ones arrive without head and body, so that they can be counted.
    pub forwards_events: bool,
    /// Time limit for the node's reply to the hello.
    pub join_timeout: Duration,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            serves: true,
            is_standby: false,
            serves_only: false,
            stream_bodies: false,
            stream_calls: false,
            max_spin: nearpath_shm::spin::DEFAULT_SPIN_BUDGET,
            max_body_bytes: 64 << 20,
            forwards_events: false,
            join_timeout: Duration::from_secs(10),
        }
    }
}

/// Reason why joining failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The node refused the endpoint.
    #[error("the node refused this endpoint: {0}")]
    Refused(String),
    /// The node closed the socket.
    #[error("the node closed the socket before its welcome")]
    HungUp,
    /// The node did not reply in time.
    #[error("no welcome from the node in time")]
    Timeout,
    /// The reply is not a valid welcome.
    #[error("invalid welcome from the node: {0}")]
    Malformed(String),
    /// A system call failed.
    #[error("cannot join: {0}")]
    Io(#[from] io::Error),
}

/// Identity that the node assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointIdentity {
    /// Name of the domain.
    pub domain: String,
    /// Id of the endpoint.
    pub id: EndpointId,
    /// Function of the endpoint; none for the gateway.
    pub function: Option<FunctionId>,
    /// Instance of the endpoint; none for the gateway.
    pub instance: Option<InstanceId>,
}

/// A joined endpoint without peers.
#[derive(Debug)]
pub(super) struct JoinedEndpoint {
    pub(super) socket: OwnedFd,
    pub(super) cell: WakeupCell,
    pub(super) endpoint: Arc<PoolEndpoint>,
    pub(super) identity: EndpointIdentity,
    /// Present when the kernel carries the descriptors.
    pub(super) inbox: Option<SockmapInbox>,
}

/// Connects to the socket at `path`.
pub(super) fn connect_socket(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends the hello, and makes the socket non-blocking.
pub(super) fn send_hello(
    socket: &OwnedFd,
    wakeup: WakeupMode,
    settings: &EndpointSettings,
) -> io::Result<()> {
    // Non-blocking from the start: one read per run must not wait for a packet.
    rustix::io::ioctl_fionbio(socket, true)?;
    let EndpointSettings {
        serves,
        is_standby: substitute,
        serves_only,
        ..
    } = *settings;
    // All modes: the node selects that of the chain (ADR 0011).
    let delivery = vec![
        DeliveryMode::Ring,
        DeliveryMode::Sockmap,
        DeliveryMode::Poll,
    ];
    let isolation = vec![DomainIsolation::Shared, DomainIsolation::Strict];
    let hello = HelloMessage {
        version: PROTOCOL_VERSION,
        serves,
        substitute,
        serves_only,
        wakeup,
        delivery,
        isolation,
    };
    packet::send_message(socket, &EndpointMessage::Hello(hello), &[])
}

/// Sends the hello and waits for the reply; makes the socket non-blocking.
pub(super) fn join_domain(
    socket: OwnedFd,
    wakeup: WakeupMode,
    settings: &EndpointSettings,
) -> Result<JoinedEndpoint, JoinError> {
    send_hello(&socket, wakeup, settings)?;
    let end = clock::deadline_after(settings.join_timeout);
    loop {
        // Computed for each wait: an unknown message must not extend the time limit.
        let left = clock::time_until(end);
        if left.is_zero() {
            return Err(JoinError::Timeout);
        }
        let timeout = Timespec::try_from(left).ok();
        // A failed or interrupted poll ends in the read below, which reports the cause.
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], timeout.as_ref());
        match packet::receive_packet(&socket) {
            Ok(packet) => {
                if let Some((welcome, descriptors)) = parse_welcome(packet)? {
                    return map_welcome(socket, welcome, descriptors, settings);
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Parses a packet as the welcome; none for an unknown message.
pub(super) fn parse_welcome(
    packet: Option<SocketPacket>,
) -> Result<Option<(WelcomeMessage, Vec<OwnedFd>)>, JoinError> {
    let packet = packet.ok_or(JoinError::HungUp)?;
    match NodeMessage::parse_packet(&packet.bytes) {
        Ok(Some(NodeMessage::Welcome(welcome))) => Ok(Some((welcome, packet.descriptors))),
        Ok(Some(NodeMessage::Refused(refused))) => Err(JoinError::Refused(refused.reason)),
        // Unknown messages are skipped, so that node and library can be upgraded independently.
        Ok(None) => Ok(None),
        Ok(Some(_)) => Err(JoinError::Malformed(
            "another message before the welcome".into(),
        )),
        Err(fault) => Err(JoinError::Malformed(fault.to_string())),
    }
}

/// Maps the regions of the welcome.
pub(super) fn map_welcome(
    socket: OwnedFd,
    welcome: WelcomeMessage,
    descriptors: Vec<OwnedFd>,
    settings: &EndpointSettings,
) -> Result<JoinedEndpoint, JoinError> {
    let mut descriptors = descriptors.into_iter();
    let missing = || JoinError::Malformed("a descriptor is missing".into());
    let endpoint = EndpointId::new(welcome.endpoint)
        .ok_or_else(|| JoinError::Malformed("endpoint 0".into()))?;
    let pool = match welcome.isolation {
        DomainIsolation::Shared => {
            let bytes = usize::try_from(welcome.pool)
                .map_err(|_| JoinError::Malformed("the pool's size".into()))?;
            SlotPool::open_region(descriptors.next().ok_or_else(missing)?, bytes)?
        }
        DomainIsolation::Strict => provide_pool(&socket, &welcome)?,
        DomainIsolation::Unknown => {
            return Err(JoinError::Malformed(
                "a kind of domain that was not offered".into(),
            ));
        }
    };
    let cell = descriptors.next().ok_or_else(missing)?;
    // One wakeup mechanism per mode: an eventfd or futex, or the sockmap socket itself.
    let (event, wire) = match welcome.delivery {
        DeliveryMode::Ring | DeliveryMode::Poll => (descriptors.next(), None),
        DeliveryMode::Sockmap => (
            None,
            Some(SockmapSocket::new(
                descriptors.next().ok_or_else(missing)?,
                SOCKET_CHECK_INTERVAL,
            )?),
        ),
        DeliveryMode::Unknown => {
            return Err(JoinError::Malformed(
                "a mode of delivery that was not offered".into(),
            ));
        }
    };
    let cell = WakeupCell::open_region(cell, event, SpinPolicy::new(settings.max_spin))?;
    let member = PoolEndpoint::new(Arc::new(pool), endpoint, welcome.max_held_bytes);
    let inbox = wire.map(|wire| SockmapInbox::new(wire, SOCKET_CHECK_INTERVAL));
    let WelcomeMessage {
        domain,
        function,
        instance,
        ..
    } = welcome;
    Ok(JoinedEndpoint {
        socket,
        cell,
        endpoint: member,
        inbox,
        identity: EndpointIdentity {
            domain,
            id: endpoint,
            function,
            instance,
        },
    })
}

/// Creates the endpoint's own pool and provides it to the node, for the peers.
fn provide_pool(socket: &OwnedFd, welcome: &WelcomeMessage) -> Result<SlotPool, JoinError> {
    let sizes: Vec<ClassSpec> = welcome
        .classes
        .iter()
        .map(|&[size, count]| ClassSpec { size, count })
        .collect();
    // Created here and not by the node: the pages count for the instance that fills them (ADR
    // 0016).
    let pool = SlotPool::create_strict(&sizes)?;
    let own = OwnPoolMessage {
        bytes: pool.region_bytes() as u64,
    };
    packet::send_message(socket, &EndpointMessage::Pool(own), &[pool.as_fd()])?;
    Ok(pool)
}
