//! Random decisions about a packet: a function of the seed and the packet's number alone.
//!
//! So each run with a seed treats the hundredth packet the same, and a link with more delay still
//! loses the same packets. The numbers are those of SplitMix64 (Steele, Lea, Flood: "Fast
//! splittable pseudorandom number generators", OOPSLA 2014), computed at any index.

/// Numbers in the range 0 to 1, 1 excluded, one for each decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PacketDraw {
    pub(super) loss: f64,
    pub(super) duplicate: f64,
    pub(super) late: f64,
    pub(super) jitter: f64,
}

/// Increment of SplitMix64's state: 2^64 divided by the golden ratio.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl PacketDraw {
    /// Draws the numbers of a packet.
    pub(super) fn for_packet(seed: u64, packet: u64) -> Self {
        let start = mix_bits(seed).wrapping_add(packet.wrapping_mul(4).wrapping_mul(GOLDEN_GAMMA));
        let fraction = |place: u64| {
            unit_fraction(mix_bits(
                start.wrapping_add((place + 1).wrapping_mul(GOLDEN_GAMMA)),
            ))
        };
        Self {
            loss: fraction(0),
            duplicate: fraction(1),
            late: fraction(2),
            jitter: fraction(3),
        }
    }
}

/// Derives a seed for each direction.
pub(super) fn direction_seed(seed: u64, direction: usize) -> u64 {
    mix_bits(seed.wrapping_add(direction as u64))
}

fn mix_bits(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Uses the upper 53 bits, which a double holds exactly.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn unit_fraction(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_out_and_decisions_are_independent() {
        let draws: Vec<PacketDraw> = (0..100_000)
            .map(|n| PacketDraw::for_packet(42, n))
            .collect();
        let share = |what: fn(&PacketDraw) -> bool| draws.iter().filter(|d| what(d)).count();
        assert!((9_500..10_500).contains(&share(|d| d.loss < 0.1)));
        assert!((49_000..51_000).contains(&share(|d| d.jitter < 0.5)));
        assert!((800..1_200).contains(&share(|d| d.loss < 0.1 && d.late < 0.1)));
        assert!((800..1_200).contains(&share(|d| d.duplicate < 0.1 && d.late < 0.1)));
    }

    #[test]
    fn seeds_and_directions_differ() {
        assert_ne!(PacketDraw::for_packet(1, 0), PacketDraw::for_packet(2, 0));
        assert_ne!(PacketDraw::for_packet(1, 0), PacketDraw::for_packet(1, 1));
        assert_ne!(direction_seed(1, 0), direction_seed(1, 1));
    }

    #[test]
    fn the_numbers_never_change() {
        let loses: Vec<u64> = (0..200)
            .filter(|&n| PacketDraw::for_packet(7, n).loss < 0.05)
            .collect();
        let expected = [8, 36, 105, 106, 108, 120, 151, 154, 178, 193];
        assert_eq!(loses, expected, "a recorded seed would mean another run");
    }
}
