//! What a link does to packets, as its user says it.

use std::time::Duration;

/// The properties of a link, the same in both directions unless one is changed alone ([`crate::lab::LabLink::set_one_direction`]).
/// By default it is a perfect cable: no delay, no loss, no limit.
///
/// ```
/// use std::time::Duration;
/// use nearpath_testkit::lab::Link;
/// let link = Link { delay: Duration::from_micros(500), loss: 0.01, seed: 7, ..Link::default() };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConditions {
    /// How long every packet is underway at the least, one way.
    pub delay: Duration,
    /// What is added to that: for each packet something between nothing and this. Packets do not overtake each other by it.
    pub jitter: Duration,
    /// The share of packets that are lost on the way, 0 to 1.
    pub loss: f64,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// The share of packets that are held back by `late`, so that others overtake them.
    pub reorder: f64,
    /// How long packets are held back that `reorder` chose.
    pub late: Duration,
    /// How many bits a second leave the sender; `NoConnection`: no limit. Only octets of IP packets count.
    pub rate: Option<u64>,
    /// How many octets wait for that at the most; a packet that does not fit any more is dropped. One always fits.
    pub queue_bytes: usize,
    /// Packets longer than this vanish without a message to anybody, as in a tunnel behind a firewall; `NoConnection`: none do.
    pub largest_packet: Option<usize>,
    /// Where chance begins: the same seed does the same to the first, second, … packet, whatever the other properties are.
    pub seed: u64,
    /// The MTU of both devices, in octets: 1280 to 65535.
    pub mtu: u32,
    /// How long before a packet is due the link's thread wakes up, to wait for the moment without sleeping. It makes the delay
    /// more exact and costs as much of a processor for each packet or batch.
    pub awake: Duration,
    /// No thread and no TUN device: a pair of the kernel's own (veth(4)), which costs a tenth of the processor and passes on whatever comes. Of
    /// the other properties only the MTU holds, nothing is counted, and such a cable cannot be cut.
    pub is_plain: bool,
}

impl Default for LinkConditions {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            late: Duration::from_millis(1),
            rate: None,
            queue_bytes: 256 * 1024,
            largest_packet: None,
            seed: 0,
            mtu: 1500,
            awake: Duration::ZERO,
            is_plain: false,
        }
    }
}

impl LinkConditions {
    /// A pair of the kernel's own devices: see [`LinkConditions::is_plain`].
    pub fn plain() -> Self {
        Self {
            is_plain: true,
            ..Self::default()
        }
    }

    /// Whether segments may stay together on this link: only where nothing depends on how many packets there are.
    pub(super) fn treats_all_alike(&self) -> bool {
        let chance =
            self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0 || !self.jitter.is_zero();
        !chance && self.rate.is_none() && self.largest_packet.is_none()
    }
}

/// What became of the packets of one direction. At any time `offered + duplicated` is the sum of `delivered`, `lost`,
/// `overflowed`, `swallowed`, `cut` and `underway`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Sent into the link. On a link that treats all packets alike, up to 64 KB of segments that go together count as one.
    pub offered: u64,
    /// Handed to the receiver.
    pub delivered: u64,
    /// Their octets.
    pub delivered_octets: u64,
    /// Lost by chance ([`LinkConditions::loss`]).
    pub lost: u64,
    /// Copies made ([`LinkConditions::duplicate`]).
    pub duplicated: u64,
    /// Held back ([`LinkConditions::reorder`]); they count again where they end.
    pub late: u64,
    /// Dropped because the queue was full ([`LinkConditions::queue_bytes`]).
    pub overflowed: u64,
    /// Longer than [`LinkConditions::largest_packet`].
    pub swallowed: u64,
    /// Sent into a cut cable, or underway in it when it was cut.
    pub cut: u64,
    /// On their way now, those that wait to be sent included.
    pub underway: u64,
}
