//! An endpoint that waits for room is woken, whatever the order of its last check and the peer's
//! answer.

use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::wakeup_cell::{self, WakeupCell};
use nearpath_shm::{
    Channel, ChannelEnd, ChannelSide, EndpointId, Envelope, MessageKind, PeerPool, PoolEndpoint,
    SlotPool,
};
use nearpath_types::InstanceId;

use super::PeerLink;
use super::outgoing::ALL_RELEASED;
use crate::endpoint::payload::BodySource;
use crate::endpoint::send_queue::{BodyExtent, begin_message};
use crate::endpoint::types::CallerIdentity;
use crate::outbound_body::MAX_PARTS_IN_FLIGHT;

/// An endpoint that sends, in a strict domain, and its peer.
struct StrictLinkPair {
    endpoint: Arc<PoolEndpoint>,
    link: PeerLink,
    peer: ChannelEnd,
    cell: WakeupCell,
}

fn strict_link_pair() -> StrictLinkPair {
    let sizes = [ClassSpec {
        size: 4096,
        count: 64,
    }];
    let pools = [(); 2].map(|()| Arc::new(SlotPool::create_strict(&sizes).unwrap()));
    let peer_pool = |pool: &SlotPool| {
        PeerPool::open_read_only(
            pool.as_fd().try_clone_to_owned().unwrap(),
            pool.region_bytes(),
        )
        .unwrap()
    };
    let endpoints = [1, 2].map(|number| EndpointId::new(number).unwrap());
    let members =
        [0, 1].map(|at| PoolEndpoint::new(Arc::clone(&pools[at]), endpoints[at], u64::MAX));
    let cells = [(); 2].map(|()| {
        WakeupCell::create(wakeup_cell::WakeupKind::BusyPoll, SpinPolicy::default()).unwrap()
    });
    let channel = Channel::create(16).unwrap();
    let own = channel.attach_end(
        ChannelSide::Caller,
        Arc::clone(&members[0]),
        endpoints[1],
        cells[1].wakeup_signal(),
    );
    let peer = channel.attach_end(
        ChannelSide::Callee,
        Arc::clone(&members[1]),
        endpoints[0],
        cells[0].wakeup_signal(),
    );
    let caller = Arc::new(CallerIdentity::new(None, None));
    let link = PeerLink::new(
        own.with_peer_pool(peer_pool(&pools[1])),
        ChannelSide::Caller,
        caller,
        InstanceId(1),
    );
    let [member, _] = members;
    let [cell, _] = cells;
    StrictLinkPair {
        endpoint: member,
        link,
        peer: peer.with_peer_pool(peer_pool(&pools[0])),
        cell,
    }
}

impl StrictLinkPair {
    /// Sends as much of a long body as there is room for. Its peer puts bodies together: there is
    /// no window but the ring.
    fn begin_long_body(&mut self) {
        let body = Bytes::from(vec![7; 1 << 20]);
        let envelope = Envelope::new(MessageKind::Call, 1);
        let load = &mut BodySource::Borrowed(&body);
        let flow = begin_message(
            &mut self.link.end,
            &self.endpoint,
            envelope,
            &[],
            load,
            BodyExtent::Complete,
        )
        .unwrap()
        .unwrap();
        self.link.add_flow(1, flow);
        self.link.record_release(1, ALL_RELEASED);
        self.link.send_unsent(&self.endpoint);
    }

    fn receive_all(&mut self) -> usize {
        std::iter::from_fn(|| self.peer.receive_message().unwrap()).count()
    }

    fn try_sleep(&mut self) -> bool {
        self.cell
            .announce_sleep(|| self.link.has_work(&self.endpoint))
    }

    /// Returns true if the endpoint still counts as asleep: no wakeup came.
    fn was_not_woken(&self) -> bool {
        self.cell.wakeup_signal().wake()
    }
}

#[test]
fn room_made_while_the_endpoint_was_awake_wakes_it_when_it_sleeps() {
    let mut pair = strict_link_pair();
    pair.begin_long_body();
    assert_eq!(pair.receive_all(), MAX_PARTS_IN_FLIGHT);
    assert!(!pair.try_sleep(), "there is room");
    pair.link.send_unsent(&pair.endpoint); // the ring is full again, and nothing of that was taken
    pair.peer.flush_batch(); // what was taken before: the peer is awake
    assert!(pair.try_sleep());
    assert_eq!(pair.receive_all(), MAX_PARTS_IN_FLIGHT);
    pair.peer.flush_batch();
    assert!(!pair.was_not_woken(), "no wakeup came");
}

#[test]
fn a_draining_link_is_woken_when_its_last_message_was_read() {
    let mut pair = strict_link_pair();
    let body = Bytes::from_static(b"event");
    for call in 0..2 {
        let envelope = Envelope::new(MessageKind::Event, call);
        let load = &mut BodySource::Borrowed(&body);
        assert!(
            begin_message(
                &mut pair.link.end,
                &pair.endpoint,
                envelope,
                &[],
                load,
                BodyExtent::Complete
            )
            .unwrap()
            .is_none()
        );
    }
    pair.link.withdrawn = true;
    assert!(!pair.link.end.is_drained() && !pair.link.end.is_newly_drained());
    assert!(pair.peer.receive_message().unwrap().is_some());
    pair.peer.flush_batch(); // one of two, while the endpoint is awake
    assert!(pair.try_sleep());
    assert_eq!(pair.receive_all(), 1);
    pair.peer.flush_batch();
    assert!(!pair.was_not_woken(), "no wakeup came");
    assert!(!pair.try_sleep(), "it can end");
    assert!(pair.link.end.is_drained());
    assert!(pair.try_sleep(), "it has nothing more to look at");
}
