//! A sender that can write in its message at any time, and a receiver, in a domain of either kind.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nearpath_shm::desk::{self, Desk};
use nearpath_shm::geometry::Size;
use nearpath_shm::region::{Pages, Region};
use nearpath_shm::spin::Spin;
use nearpath_shm::{Channel, End, Envelope, Foreign, Kind, Knocker, Lease, Member, Outgoing, Party, Pool, Side};

use super::watch::PAGE;

/// Bytes of the message: a page with the envelope, one of the body's middle, one of its end.
pub(crate) const LENGTH: u32 = super::trap::SIZE as u32;
/// Bytes of its body.
pub(crate) const BODY: u32 = LENGTH - 64;
const SIZES: [Size; 1] = [Size { size: 4 * PAGE as u32, count: 2 }];

/// See the module. The message has been sent.
pub(crate) struct Scene {
    pub(crate) receiver: End,
    /// Where the message's slot is in a view of the pool that is not the sender's.
    pub(crate) view: usize,
    /// Where the message is in the sender's.
    place: usize,
    _keep: (End, Arc<Pool>, Option<Arc<Region>>),
}

fn party(number: u16) -> Party {
    Party::new(number).unwrap()
}

fn knocker() -> Knocker {
    Desk::create(desk::Kind::None, Spin::default()).unwrap().knocker()
}

fn member(pool: &Arc<Pool>, number: u16) -> Arc<Member> {
    Member::new(Arc::clone(pool), party(number), u64::MAX)
}

fn descriptor(pool: &Pool) -> OwnedFd {
    pool.as_fd().try_clone_to_owned().unwrap()
}

impl Scene {
    /// With a pool that the sender alone can write. The view is the map of somebody who reads it as he likes.
    pub(crate) fn strict(offset: u32) -> Self {
        let pool = Arc::new(Pool::create_own(&SIZES).unwrap());
        let source = Foreign::open(descriptor(&pool), pool.bytes()).unwrap();
        let region = Region::open_read_only(descriptor(&pool), pool.bytes()).unwrap();
        let (channel, sender) = (Channel::create(16).unwrap(), member(&pool, 1));
        let end = channel.end(Side::Caller, Arc::clone(&sender), party(2), knocker()).strictly(source.clone());
        let receiver = channel.end(Side::Callee, member(&pool, 2), party(1), knocker()).strictly(source);
        let lease = sender.claim(LENGTH).unwrap();
        let at = pool.geometry().slot_offset(lease.slot()).unwrap();
        let view = region.place(at, LENGTH as usize).unwrap().as_ptr() as usize;
        Self::send(end, receiver, (lease, offset), view, (pool, Some(region)))
    }

    /// With a pool that both can write. The view is the receiver's own.
    pub(crate) fn shared(offset: u32) -> Self {
        let pool = Arc::new(Pool::create(&SIZES, Pages::Small).unwrap());
        let seen = Arc::new(Pool::open(descriptor(&pool), pool.bytes()).unwrap());
        let (channel, sender, reader) = (Channel::create(16).unwrap(), member(&pool, 1), member(&seen, 2));
        let end = channel.end(Side::Caller, Arc::clone(&sender), party(2), knocker());
        let receiver = channel.end(Side::Callee, Arc::clone(&reader), party(1), knocker());
        let lease = reader.claim(LENGTH).unwrap(); // the first slot: where the receiver sees it
        let view = lease.place(0, LENGTH as usize).unwrap().as_ptr() as usize;
        let slot = lease.slot();
        drop(lease);
        let lease = sender.claim(LENGTH).unwrap();
        assert_eq!(lease.slot(), slot);
        Self::send(end, receiver, (lease, offset), view, (pool, None))
    }

    fn send(
        mut sender: End,
        receiver: End,
        (mut lease, offset): (Lease, u32),
        view: usize,
        (pool, region): (Arc<Pool>, Option<Arc<Region>>),
    ) -> Self {
        let envelope = Envelope { status: 7, body: BODY, total: BODY.into(), ..Envelope::new(Kind::Event, 7) };
        lease.write(offset, &envelope.to_bytes());
        lease.write(offset + 64, &vec![b'a'; BODY as usize]);
        let place = lease.place(offset, LENGTH as usize).unwrap().as_ptr() as usize;
        sender.send(Outgoing { lease, offset, length: LENGTH }).unwrap();
        Self { receiver, view, place, _keep: (sender, pool, region) }
    }

    /// What the sender does after it has sent: all of the message becomes another, with a body of so many bytes as it says.
    pub(crate) fn rewrite(&self, body: u32) -> impl Fn() + Send + 'static {
        let envelope = Envelope { status: 666, body, total: body.into(), ..Envelope::new(Kind::Cancel, 666) };
        let (envelope, place) = (envelope.to_bytes(), self.place);
        move || {
            let place = place as *mut u8;
            // SAFETY: LENGTH bytes of the sender's own mapping, which the scene keeps; it is what this test is about that
            // another thread reads them meanwhile.
            unsafe {
                std::ptr::copy_nonoverlapping(envelope.as_ptr(), place, 64);
                std::ptr::write_bytes(place.add(64), b'b', BODY as usize);
            }
        }
    }
}
