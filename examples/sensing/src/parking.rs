//! Parking: every four minutes each camera sends a picture of its spot, all at once.
//!
//! ```text
//! detection ─► search ─► charging                          the plate is known: nine of ten
//!                 └────► index ─► persist ─► charging      it is new
//! ```
//!
//! The published pictures (CNRPark) are not to be had by program, so [`picture`] paints one of the
//! same size: a grey image (PGM) of about 3 KB with the plate as a bar code. Detection reads it;
//! that it takes 435 ms is waited for, as in the paper's own artifact, and so are the other
//! functions' times.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rng::ExampleRng;

/// Spots, each with a camera.
pub const SPOTS: u16 = 164;
/// Between two bursts.
pub const PERIOD: Duration = Duration::from_secs(240);

const WIDTH: usize = 64;
const HEIGHT: usize = 48;
const HEADER_BYTES: &[u8] = b"P5\n64 48\n255\n";
const PLATE_BITS: usize = 32;

/// Returns the work of a function by its name.
pub fn work(function: &str) -> Duration {
    Duration::from_millis(match function {
        "detection" => 435,
        "search" => 20,
        "index" => 1,
        "persist" => 10,
        "charging" => 50,
        _ => 0,
    })
}

/// A car on a spot, and what has become of it so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visit {
    /// Its plate.
    pub plate: u32,
    /// The functions that have seen it, in order.
    pub route: Vec<String>,
}

impl Visit {
    /// Notes that a function has seen it.
    #[must_use]
    pub fn seen_by(mut self, function: &str) -> Self {
        self.route.push(function.to_owned());
        self
    }

    /// Returns true if search finds the plate. The register is arithmetic: plates divisible by ten
    /// are new.
    pub fn is_known(&self) -> bool {
        !self.plate.is_multiple_of(10)
    }

    /// Returns the function that `function` calls next; `None` ends the chain.
    pub fn next(&self, function: &str) -> Option<&'static str> {
        match function {
            "detection" => Some("search"),
            "search" if self.is_known() => Some("charging"),
            "search" => Some("index"),
            "index" => Some("persist"),
            "persist" => Some("charging"),
            _ => None,
        }
    }

    /// The functions that it should come by.
    pub fn whole_route(&self) -> Vec<&'static str> {
        std::iter::successors(Some("detection"), |function| self.next(function)).collect()
    }
}

/// The plates of one burst, one a spot; the same for the same seed and number of the burst. One of
/// ten is new, by chance.
pub fn plates(seed: u64, burst: u64) -> Vec<u32> {
    let mut rng = ExampleRng::new(seed ^ burst.wrapping_mul(0x2545_f491_4f6c_dd1d));
    (0..SPOTS)
        .map(|_| rng.next_between(1, 1 << 31) as u32)
        .collect()
}

/// A picture of a car with this plate: noise, and the plate's bits as bars in the upper half.
pub fn picture(seed: u64, plate: u32) -> Vec<u8> {
    let mut rng = ExampleRng::new(seed ^ u64::from(plate));
    let mut picture = HEADER_BYTES.to_vec();
    for at in 0..WIDTH * HEIGHT {
        let (x, y) = (at % WIDTH, at / WIDTH);
        let bright = y < HEIGHT / 2 && plate >> (x * PLATE_BITS / WIDTH) & 1 == 1;
        let low = if bright { 160 } else { 16 };
        picture.push(rng.next_between(low, low + 64) as u8);
    }
    picture
}

/// Reads the plate. `None`: this is no such picture.
pub fn detect(picture: &[u8]) -> Option<Visit> {
    let pixels = picture
        .strip_prefix(HEADER_BYTES)
        .filter(|pixels| pixels.len() == WIDTH * HEIGHT)?;
    let wide = WIDTH / PLATE_BITS;
    let bit = |bit: usize| {
        let rows = pixels.chunks(WIDTH).take(HEIGHT / 2);
        let sum: usize = rows
            .flat_map(|row| &row[bit * wide..(bit + 1) * wide])
            .map(|pixel| usize::from(*pixel))
            .sum();
        u32::from(sum > 128 * wide * HEIGHT / 2) << bit
    };
    Some(Visit {
        plate: (0..PLATE_BITS).map(bit).sum(),
        route: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_routes() {
        let route = |plate| {
            Visit {
                plate,
                route: Vec::new(),
            }
            .whole_route()
        };
        assert_eq!(route(31), ["detection", "search", "charging"]);
        assert_eq!(
            route(30),
            ["detection", "search", "index", "persist", "charging"]
        );
    }

    #[test]
    fn one_of_ten_is_new() {
        let all: Vec<_> = (0..100).flat_map(|burst| plates(1, burst)).collect();
        let new = all.iter().filter(|plate| plate.is_multiple_of(10)).count();
        assert_eq!(all.len(), 16_400);
        assert!((1_450..1_830).contains(&new), "{new}");
        assert_ne!(plates(1, 0), plates(1, 1));
    }

    proptest! {
        #[test]
        fn what_was_painted_is_read(seed: u64, plate: u32) {
            let picture = picture(seed, plate);
            prop_assert!((2_900..3_200).contains(&picture.len()));
            prop_assert_eq!(detect(&picture).map(|visit| visit.plate), Some(plate));
        }

        #[test]
        fn anything_else_is_no_picture(bytes in proptest::collection::vec(any::<u8>(), 0..4_000)) {
            prop_assert_eq!(detect(&bytes), None);
        }
    }
}
