//! Conditions of a link and its counters.

use std::time::Duration;

/// Conditions of a link, the same in both directions unless one is set alone
/// ([`crate::lab::LabLink::set_one_direction`]). The default is a perfect link: no delay, no loss,
/// no limit.
///
/// ```
/// use std::time::Duration;
/// use nearpath_testkit::lab::LinkConditions;
/// let conditions = LinkConditions { delay: Duration::from_micros(500), loss: 0.01, seed: 7, ..LinkConditions::default() };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConditions {
    /// Minimum one-way delay of every packet.
    pub delay: Duration,
    /// Maximum of a random addition to the delay. Packets do not overtake each other by it.
    pub jitter: Duration,
    /// Share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// Share of packets that arrive twice.
    pub duplicate: f64,
    /// Share of packets that are held back by `late`, so that others overtake them.
    pub reorder: f64,
    /// Time for which the packets chosen by `reorder` are held back.
    pub late: Duration,
    /// Bits per second that leave the sender; `None`: no limit. Only octets of IP packets count.
    pub rate: Option<u64>,
    /// Maximum number of octets that wait for the rate. A packet that does not fit is dropped; a
    /// single one always fits.
    pub queue_bytes: usize,
    /// Packets longer than this are dropped silently, as in a tunnel behind a firewall; `None`:
    /// none are.
    pub largest_packet: Option<usize>,
    /// Seed of all random decisions. The same seed decides the same about the n-th packet, whatever
    /// the other conditions are.
    pub seed: u64,
    /// The MTU of both devices, in octets: 1280 to 65535.
    pub mtu: u32,
    /// Time before a packet is due at which the link's thread wakes up, to wait without sleeping.
    /// It makes the delay more exact, and costs that much CPU time for each packet or batch.
    pub awake: Duration,
    /// Uses a pair of kernel devices (veth(4)) instead of a thread and TUN devices. It costs a
    /// tenth of the CPU time and carries every packet. Of the other conditions only the MTU
    /// applies; nothing is counted, and the link cannot be cut.
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
    /// Conditions of a link of kernel devices, see [`LinkConditions::is_plain`].
    pub fn plain() -> Self {
        Self {
            is_plain: true,
            ..Self::default()
        }
    }

    /// Returns true if segments may stay together: only where nothing depends on the number of
    /// packets.
    pub(super) fn treats_all_alike(&self) -> bool {
        let chance =
            self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0 || !self.jitter.is_zero();
        !chance && self.rate.is_none() && self.largest_packet.is_none()
    }
}

/// Counters of one direction. At any time `offered + duplicated` is the sum of `delivered`, `lost`,
/// `overflowed`, `swallowed`, `cut` and `underway`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets sent into the link. If it treats all packets alike, up to 64 KB of segments that
    /// stay together count as one.
    pub offered: u64,
    /// Packets delivered to the receiver.
    pub delivered: u64,
    /// Octets of the delivered packets.
    pub delivered_octets: u64,
    /// Packets lost at random ([`LinkConditions::loss`]).
    pub lost: u64,
    /// Copies made ([`LinkConditions::duplicate`]).
    pub duplicated: u64,
    /// Packets held back ([`LinkConditions::reorder`]). They are also counted where they end.
    pub late: u64,
    /// Packets dropped because the queue was full ([`LinkConditions::queue_bytes`]).
    pub overflowed: u64,
    /// Packets longer than [`LinkConditions::largest_packet`].
    pub swallowed: u64,
    /// Packets sent into a cut link, or underway in it when it was cut.
    pub cut: u64,
    /// Packets underway now, including those that wait to be sent.
    pub underway: u64,
}
