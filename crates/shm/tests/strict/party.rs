//! Parties of a strict domain within one process.

use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::desk::{self, Desk};
use nearpath_shm::geometry::Size;
use nearpath_shm::spin::Spin;
use nearpath_shm::{Channel, Draft, End, Envelope, Foreign, Kind, Member, Outgoing, Party, Pool, Side};

pub(crate) const CAPACITY: u32 = 16;
pub(crate) const SIZES: [Size; 2] = [Size { size: 256, count: 24 }, Size { size: 4096, count: 4 }];

pub(crate) fn number(number: u16) -> Party {
    Party::new(number).unwrap()
}

/// A party with a pool of its own.
pub(crate) fn member(n: u16) -> Arc<Member> {
    Member::new(Arc::new(Pool::create_own(&SIZES).unwrap()), number(n), u64::MAX)
}

/// Its pool as its peers have it.
pub(crate) fn seen(member: &Member) -> Foreign {
    let fd = member.pool().as_fd().try_clone_to_owned().unwrap();
    Foreign::open(fd, member.pool().bytes()).unwrap()
}

/// Both ends of a channel: caller, callee.
pub(crate) fn ends(channel: &Channel, caller: &Arc<Member>, callee: &Arc<Member>) -> [End; 2] {
    let desk = || Desk::create(desk::Kind::None, Spin::default()).unwrap().knocker();
    let end = |side, own: &Arc<Member>, peer: &Arc<Member>| {
        channel.end(side, Arc::clone(own), peer.party(), desk()).strictly(seen(peer))
    };
    [end(Side::Caller, caller, callee), end(Side::Callee, callee, caller)]
}

/// Two parties and their channel.
pub(crate) struct Pair {
    pub(crate) channel: Channel,
    pub(crate) caller: End,
    pub(crate) callee: End,
    pub(crate) members: [Arc<Member>; 2],
}

impl Pair {
    pub(crate) fn new() -> Self {
        let (channel, members) = (Channel::create(CAPACITY).unwrap(), [1, 2].map(member));
        let [caller, callee] = ends(&channel, &members[0], &members[1]);
        Self { channel, caller, callee, members }
    }
}

pub(crate) fn message(member: &Arc<Member>, kind: Kind, call: u64, body: &[u8]) -> Outgoing {
    let mut draft = Draft::new(member.claim(64 + 16 + body.len() as u32).unwrap());
    draft.field(":method", b"POST").unwrap();
    draft.body(body).unwrap();
    draft.finish(Envelope::new(kind, call))
}
