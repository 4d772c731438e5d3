//! What a strict domain asks of its parties, by one that speaks the protocol by hand.

use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use nearpath_domain::hub::Isolation;
use nearpath_domain::protocol::{Bell, FromNode, FromParty, Hello, OwnPool, Welcome};
use nearpath_domain::{Answer, Request, To, packet};
use nearpath_shm::geometry::Size;
use nearpath_shm::region::{Pages, Region};
use nearpath_shm::{Foreign, Pool};
use nearpath_types::InstanceId;

use super::node::{Mode, Node, function, knows};

fn say(socket: &OwnedFd, message: FromParty) {
    packet::send(socket, &message, &[]).unwrap();
}

/// Says hello; the node's answer.
fn hello(node: &Node, mode: Mode, instance: u64, name: &str, isolation: Vec<Isolation>) -> (OwnedFd, FromNode) {
    let socket = node.socket(instance, name);
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    say(
        &socket,
        FromParty::Hello(Hello {
            version: 1,
            serves: true,
            stands_in: false,
            bell: Bell::None,
            delivery: vec![mode],
            isolation,
        }),
    );
    let answer = packet::receive(&socket).unwrap().unwrap();
    (socket, FromNode::read(&answer.bytes).unwrap().unwrap())
}

fn enter(node: &Node, mode: Mode, instance: u64, name: &str) -> (OwnedFd, Welcome) {
    let (socket, answer) = hello(node, mode, instance, name, vec![Isolation::Strict]);
    let FromNode::Welcome(welcome) = answer else { panic!("no welcome: {answer:?}") };
    assert_eq!(welcome.isolation, Isolation::Strict);
    (socket, welcome)
}

fn own(welcome: &Welcome) -> Pool {
    let sizes: Vec<Size> = welcome.classes.iter().map(|&[size, count]| Size { size, count }).collect();
    let pool = Pool::create_own(&sizes).unwrap();
    assert_eq!(pool.bytes() as u64, welcome.pool);
    pool
}

fn give(socket: &OwnedFd, bytes: u64, pool: impl AsFd) {
    packet::send(socket, &FromParty::Pool(OwnPool { bytes }), &[pool.as_fd()]).unwrap();
}

/// What the node says of a party's fault, after it has hung up.
fn fault(mut node: Node, socket: &OwnedFd) -> String {
    while packet::receive(socket).unwrap().is_some() {}
    node.faults.blocking_recv().unwrap().what
}

pub(crate) fn who_cannot_is_refused(mode: Mode) {
    let node = Node::new(mode);
    let (_, answer) = hello(&node, mode, 1, "old", Vec::new());
    let FromNode::Refused(refused) = answer else { panic!("{answer:?}") };
    assert!(refused.why.contains("nearpath.io/isolation: strict"), "{}", refused.why);
}

pub(crate) fn only_a_sealed_pool_is_taken(mode: Mode) {
    let told = |give_pool: fn(&OwnedFd, &Welcome)| {
        let node = Node::new(mode);
        let (socket, welcome) = enter(&node, mode, 1, "f");
        give_pool(&socket, &welcome);
        fault(node, &socket)
    };
    let open = told(|socket, welcome| {
        let region = Region::create("np-test", welcome.pool as usize, Pages::Small).unwrap();
        give(socket, welcome.pool, region);
    });
    assert!(open.contains("not sealed against writing"), "{open}");
    let small = told(|socket, welcome| {
        let region = Region::create_read_only_for_others("np-test", 4096).unwrap();
        give(socket, welcome.pool, region);
    });
    assert!(small.contains("another size"), "{small}");
    let lied = told(|socket, welcome| give(socket, welcome.pool - 4096, own(welcome)));
    assert!(lied.contains("bytes, not"), "{lied}");
    let none = told(|socket, welcome| say(socket, FromParty::Pool(OwnPool { bytes: welcome.pool })));
    assert!(none.contains("one descriptor"), "{none}");
    let second = told(|socket, welcome| {
        give(socket, welcome.pool, own(welcome));
        give(socket, welcome.pool, own(welcome));
    });
    assert!(second.contains("a second pool"), "{second}");
}

/// A party that owes its pool has no channels; once it has given it, each side gets the other's.
pub(crate) fn nobody_is_introduced_without_a_pool(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let (callee, theirs) = enter(&node, mode, 2, "b");
    say(&callee, FromParty::Ready {});
    let (caller, welcome) = enter(&node, mode, 1, "a");
    let (pool, other) = (own(&welcome), own(&theirs));
    give(&caller, welcome.pool, &pool);
    let roll = node.runtime.block_on(node.hub.usage());
    assert_eq!((roll.parties, roll.channels), (2, 0));
    give(&callee, theirs.pool, &other);
    for (socket, theirs) in [(&callee, &pool), (&caller, &other)] {
        let packet = packet::receive(socket).unwrap().unwrap();
        let Some(FromNode::Peer(peer)) = FromNode::read(&packet.bytes).unwrap() else { panic!("no peer") };
        assert_eq!(peer.pool, Some(theirs.bytes() as u64));
        let pool = packet.descriptors.into_iter().nth(1).unwrap();
        let same = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(same(&pool), same(&theirs.as_fd().try_clone_to_owned().unwrap()));
        Foreign::open(pool, theirs.bytes()).unwrap();
    }
}

/// The channel to an instance that is withdrawn ends when all has been read that lies in its caller's pool.
pub(crate) fn events_are_read_before_a_channel_ends(mode: Mode) {
    let node = Node::new(mode);
    node.edges(&[("a", "b")]);
    let (count, counted) = std::sync::mpsc::channel();
    let serving = node.serve(2, "b", move |_, incoming| {
        count.send(incoming.body.clone()).unwrap();
        Answer::default()
    });
    let mut caller = node.caller(1, "a");
    knows(&mut caller, "b");
    let sent: Vec<Bytes> = (0..50u8).map(|number| Bytes::from(vec![number; 3000])).collect();
    for body in &sent {
        let request = Request { body: body.clone(), ..Request::default() };
        caller.notify(To::Function(&function("b")), &request).unwrap();
    }
    let hub = node.hub.clone();
    let withdrawn = node.runtime.spawn(async move { hub.withdraw(InstanceId(2)).await });
    let waiting = std::thread::spawn(move || while caller.next(None).is_some() {});
    node.runtime.block_on(withdrawn).unwrap();
    let read: Vec<Bytes> = sent.iter().map(|_| counted.recv_timeout(super::node::DEADLINE).unwrap()).collect();
    assert_eq!(read, sent);
    node.stop();
    serving.join().unwrap();
    waiting.join().unwrap();
}
