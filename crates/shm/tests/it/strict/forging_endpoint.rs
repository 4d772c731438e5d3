//! Endpoints of a strict domain within one process.

use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::wakeup_cell::{self, WakeupCell};
use nearpath_shm::{
    Channel, ChannelEnd, ChannelSide, EndpointId, Envelope, MessageDraft, MessageKind,
    OutgoingMessage, PeerPool, PoolEndpoint, SlotPool,
};

pub(crate) const RING_CAPACITY: u32 = 16;
pub(crate) const CLASS_SPECS: [ClassSpec; 2] = [
    ClassSpec {
        size: 256,
        count: 24,
    },
    ClassSpec {
        size: 4096,
        count: 4,
    },
];

pub(crate) fn endpoint_id(number: u16) -> EndpointId {
    EndpointId::new(number).unwrap()
}

/// An endpoint with a pool of its own.
pub(crate) fn strict_endpoint(n: u16) -> Arc<PoolEndpoint> {
    PoolEndpoint::new(
        Arc::new(SlotPool::create_strict(&CLASS_SPECS).unwrap()),
        endpoint_id(n),
        u64::MAX,
    )
}

/// Its pool as its peers have it.
pub(crate) fn peer_view(member: &PoolEndpoint) -> PeerPool {
    let fd = member.pool().as_fd().try_clone_to_owned().unwrap();
    PeerPool::open_read_only(fd, member.pool().region_bytes()).unwrap()
}

/// Both ends of a channel: caller, callee.
pub(crate) fn channel_ends(
    channel: &Channel,
    caller: &Arc<PoolEndpoint>,
    callee: &Arc<PoolEndpoint>,
) -> [ChannelEnd; 2] {
    let cell = || {
        WakeupCell::create(wakeup_cell::WakeupKind::BusyPoll, SpinPolicy::default())
            .unwrap()
            .wakeup_signal()
    };
    let end = |side, own: &Arc<PoolEndpoint>, peer: &Arc<PoolEndpoint>| {
        channel
            .attach_end(side, Arc::clone(own), peer.id(), cell())
            .with_peer_pool(peer_view(peer))
    };
    [
        end(ChannelSide::Caller, caller, callee),
        end(ChannelSide::Callee, callee, caller),
    ]
}

/// Two endpoints and their channel.
pub(crate) struct StrictPair {
    pub(crate) channel: Channel,
    pub(crate) caller: ChannelEnd,
    pub(crate) callee: ChannelEnd,
    pub(crate) endpoints: [Arc<PoolEndpoint>; 2],
}

impl StrictPair {
    pub(crate) fn new() -> Self {
        let (channel, members) = (
            Channel::create(RING_CAPACITY).unwrap(),
            [1, 2].map(strict_endpoint),
        );
        let [caller, callee] = channel_ends(&channel, &members[0], &members[1]);
        Self {
            channel,
            caller,
            callee,
            endpoints: members,
        }
    }
}

pub(crate) fn new_message(
    member: &Arc<PoolEndpoint>,
    kind: MessageKind,
    call: u64,
    body: &[u8],
) -> OutgoingMessage {
    let mut draft = MessageDraft::new(member.claim_slot(64 + 16 + body.len() as u32).unwrap());
    draft.add_field(":method", b"POST").unwrap();
    draft.append_body(body).unwrap();
    draft.finish(Envelope::new(kind, call))
}
