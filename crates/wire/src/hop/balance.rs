//! Power of two choices: of two servers drawn at random the less loaded one gets the call
//! (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).

/// Draws two different numbers below `n`, or twice 0 if `n` is 1.
pub fn draw_pair(n: usize, random: u64) -> Option<(usize, usize)> {
    if n < 2 {
        return (n == 1).then_some((0, 0));
    }
    // Both halves of one random number: independent enough, and one call of the generator.
    let a = (random >> 32) as usize % n;
    let b = random as u32 as usize % (n - 1);
    Some((a, if b >= a { b + 1 } else { b }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn two_different_ones_are_drawn(n in 2usize..1_000, random in any::<u64>()) {
            let (a, b) = draw_pair(n, random).unwrap();
            prop_assert!(a != b && a < n && b < n);
        }
    }

    #[test]
    fn every_pair_can_be_drawn() {
        let pairs: std::collections::HashSet<_> = (0..3u64)
            .flat_map(|a| (0..2u64).map(move |b| draw_pair(3, a << 32 | b).unwrap()))
            .collect();
        assert_eq!(pairs.len(), 6);
        assert_eq!((draw_pair(0, 7), draw_pair(1, 7)), (None, Some((0, 0))));
    }
}
