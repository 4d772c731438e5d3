//! A sender that can write in its message at any time, and a receiver, in a domain of either kind.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::region::{PageKind, Region};
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::wakeup_cell::{self, WakeupCell};
use nearpath_shm::{
    Channel, ChannelEnd, ChannelSide, EndpointId, Envelope, Lease, MessageKind, OutgoingMessage,
    PeerPool, PoolEndpoint, SlotPool, WakeupSignal,
};

use super::watch::PAGE_BYTES;

/// Bytes of the message: a page with the envelope, one of the body's middle, one of its end.
pub(crate) const MESSAGE_BYTES: u32 = super::trap::TRAP_BYTES as u32;
/// Bytes of its body.
pub(crate) const BODY_BYTES: u32 = MESSAGE_BYTES - 64;
const CLASS_SPECS: [ClassSpec; 1] = [ClassSpec {
    size: 4 * PAGE_BYTES as u32,
    count: 2,
}];

/// A sender that rewrites a message after it was sent.
pub(crate) struct RewritingSender {
    pub(crate) receiver: ChannelEnd,
    /// Address of the message's slot in a view of the pool that is not the sender's.
    pub(crate) view: usize,
    /// Address of the message in the sender's view.
    place: usize,
    _keep: (ChannelEnd, Arc<SlotPool>, Option<Arc<Region>>),
}

fn endpoint_id(number: u16) -> EndpointId {
    EndpointId::new(number).unwrap()
}

fn polled_signal() -> WakeupSignal {
    WakeupCell::create(wakeup_cell::WakeupKind::BusyPoll, SpinPolicy::default())
        .unwrap()
        .wakeup_signal()
}

fn pool_endpoint(pool: &Arc<SlotPool>, number: u16) -> Arc<PoolEndpoint> {
    PoolEndpoint::new(Arc::clone(pool), endpoint_id(number), u64::MAX)
}

fn duplicate_fd(pool: &SlotPool) -> OwnedFd {
    pool.as_fd().try_clone_to_owned().unwrap()
}

impl RewritingSender {
    /// With a pool that the sender alone can write. The view is the map of somebody who reads it as
    /// he likes.
    pub(crate) fn new_strict(offset: u32) -> Self {
        let pool = Arc::new(SlotPool::create_strict(&CLASS_SPECS).unwrap());
        let source = PeerPool::open_read_only(duplicate_fd(&pool), pool.region_bytes()).unwrap();
        let region = Region::open_read_only(duplicate_fd(&pool), pool.region_bytes()).unwrap();
        let (channel, sender) = (Channel::create(16).unwrap(), pool_endpoint(&pool, 1));
        let end = channel
            .attach_end(
                ChannelSide::Caller,
                Arc::clone(&sender),
                endpoint_id(2),
                polled_signal(),
            )
            .with_peer_pool(source.clone());
        let receiver = channel
            .attach_end(
                ChannelSide::Callee,
                pool_endpoint(&pool, 2),
                endpoint_id(1),
                polled_signal(),
            )
            .with_peer_pool(source);
        let lease = sender.claim_slot(MESSAGE_BYTES).unwrap();
        let at = pool.geometry().slot_offset(lease.slot()).unwrap();
        let view = region
            .byte_ptr(at, MESSAGE_BYTES as usize)
            .unwrap()
            .as_ptr() as usize;
        Self::send_message(end, receiver, (lease, offset), view, (pool, Some(region)))
    }

    /// With a pool that both can write. The view is the receiver's own.
    pub(crate) fn new_shared(offset: u32) -> Self {
        let pool = Arc::new(SlotPool::create(&CLASS_SPECS, PageKind::Small).unwrap());
        let seen =
            Arc::new(SlotPool::open_region(duplicate_fd(&pool), pool.region_bytes()).unwrap());
        let (channel, sender, reader) = (
            Channel::create(16).unwrap(),
            pool_endpoint(&pool, 1),
            pool_endpoint(&seen, 2),
        );
        let end = channel.attach_end(
            ChannelSide::Caller,
            Arc::clone(&sender),
            endpoint_id(2),
            polled_signal(),
        );
        let receiver = channel.attach_end(
            ChannelSide::Callee,
            Arc::clone(&reader),
            endpoint_id(1),
            polled_signal(),
        );
        // The first slot: where the receiver sees it
        let lease = reader.claim_slot(MESSAGE_BYTES).unwrap();
        let view = lease.byte_ptr(0, MESSAGE_BYTES as usize).unwrap().as_ptr() as usize;
        let slot = lease.slot();
        drop(lease);
        let lease = sender.claim_slot(MESSAGE_BYTES).unwrap();
        assert_eq!(lease.slot(), slot);
        Self::send_message(end, receiver, (lease, offset), view, (pool, None))
    }

    fn send_message(
        mut sender: ChannelEnd,
        receiver: ChannelEnd,
        (mut lease, offset): (Lease, u32),
        view: usize,
        (pool, region): (Arc<SlotPool>, Option<Arc<Region>>),
    ) -> Self {
        let envelope = Envelope {
            status: 7,
            body: BODY_BYTES,
            total: BODY_BYTES.into(),
            ..Envelope::new(MessageKind::Event, 7)
        };
        lease.write_bytes(offset, &envelope.to_bytes());
        lease.write_bytes(offset + 64, &vec![b'a'; BODY_BYTES as usize]);
        let place = lease
            .byte_ptr(offset, MESSAGE_BYTES as usize)
            .unwrap()
            .as_ptr() as usize;
        sender
            .send_message(OutgoingMessage {
                lease,
                offset,
                length: MESSAGE_BYTES,
            })
            .unwrap();
        Self {
            receiver,
            view,
            place,
            _keep: (sender, pool, region),
        }
    }

    /// Rewrites the message as its sender does after sending it. The new body claims the given
    /// number of bytes.
    pub(crate) fn rewrite_message(&self, body: u32) -> impl Fn() + Send + 'static {
        let envelope = Envelope {
            status: 666,
            body,
            total: body.into(),
            ..Envelope::new(MessageKind::Cancel, 666)
        };
        let (envelope, place) = (envelope.to_bytes(), self.place);
        move || {
            let place = place as *mut u8;
            // SAFETY: LENGTH bytes of the sender's own mapping, which the scene keeps; it is what
            // this test is about that another thread reads them meanwhile.
            unsafe {
                std::ptr::copy_nonoverlapping(envelope.as_ptr(), place, 64);
                std::ptr::write_bytes(place.add(64), b'b', BODY_BYTES as usize);
            }
        }
    }
}
