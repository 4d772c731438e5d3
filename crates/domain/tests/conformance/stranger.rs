//! A party that speaks the protocols by hand, to do what the library would not.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use std::vec::IntoIter;

use nearpath_domain::packet;
use nearpath_domain::post::blocking;
use nearpath_domain::protocol::{Bell, FromNode, FromParty, Hello};
use nearpath_shm::wire::RECORD;
use nearpath_shm::{Channel, End, Knocker, Member, Message, Party, Pool, Record, Side, Wire};

use super::node::{DEADLINE, Mode, Node, knows};

pub(crate) struct Stranger {
    pub(crate) socket: OwnedFd,
    pub(crate) member: Arc<Member>,
    /// There when the kernel carries.
    pub(crate) wire: Option<Wire>,
}

impl Stranger {
    pub(crate) fn join(node: &Node, mode: Mode, instance: u64, name: &str) -> Self {
        let socket = node.socket(instance, name);
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        let hello = Hello {
            version: 1,
            serves: true,
            stands_in: false,
            bell: Bell::None,
            delivery: vec![mode],
            isolation: vec![],
        };
        packet::send(&socket, &FromParty::Hello(hello), &[]).unwrap();
        packet::send(&socket, &FromParty::Ready {}, &[]).unwrap();
        let (FromNode::Welcome(welcome), mut fds) = next(&socket) else { panic!("no welcome") };
        let pool = Pool::open(fds.next().unwrap(), welcome.pool as usize).unwrap();
        let member = Member::new(Arc::new(pool), Party::new(welcome.party).unwrap(), u64::MAX);
        let wire = fds.nth(1).map(|wire| Wire::new(wire, DEADLINE).unwrap());
        Self { socket, member, wire }
    }

    /// The callee's end of the next channel that the node tells of.
    pub(crate) fn meet(&self) -> End {
        let (FromNode::Peer(peer), mut fds) = next(&self.socket) else { panic!("no peer") };
        let channel = Channel::open(fds.next().unwrap(), peer.capacity).unwrap();
        let knocker = Knocker::open(fds.next().unwrap(), fds.next()).unwrap();
        let end = channel.end(Side::Callee, self.member.clone(), Party::new(peer.party).unwrap(), knocker);
        match &self.wire {
            Some(wire) => end.over(wire.clone(), peer.channel),
            None => end,
        }
    }
}

impl Stranger {
    /// The next message that comes.
    pub(crate) fn receive(&self, end: &mut End) -> Message {
        let start = Instant::now();
        while start.elapsed() < DEADLINE {
            if let Some(wire) = &self.wire {
                let mut record = [0; RECORD];
                assert_eq!(wire.fetch(&mut record, true).unwrap(), RECORD);
                end.deliver(&Record::from_bytes(&record));
            }
            if let Some(message) = end.receive().unwrap() {
                return message;
            }
            std::thread::yield_now();
        }
        panic!("nothing comes");
    }
}

/// A party `a` that calls, a stranger `b` that it knows as instance 2, and b's end of their channel.
pub(crate) fn pair(node: &Node, mode: Mode) -> (blocking::Post, Stranger, End) {
    node.edges(&[("a", "b")]);
    let stranger = Stranger::join(node, mode, 2, "b");
    let mut a = node.caller(1, "a");
    let end = stranger.meet();
    knows(&mut a, "b");
    (a, stranger, end)
}

fn next(socket: &OwnedFd) -> (FromNode, IntoIter<OwnedFd>) {
    let packet = packet::receive(socket).unwrap().unwrap();
    (FromNode::read(&packet.bytes).unwrap().unwrap(), packet.descriptors.into_iter())
}
