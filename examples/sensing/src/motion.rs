//! Motion detection: quiet for long, then a run of events a few seconds apart.
//!
//! The trace behind the published figures (MERL motion detector data) is not to be had by program,
//! so [`events`] makes one of the same shape: gaps of seconds to minutes, and runs in which events
//! are 2 to 3 s apart. Both functions work for [`WORK`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rng::ExampleRng;

/// Work of each function on an event.
pub const WORK: Duration = Duration::from_millis(1);

/// Event of a sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the sensor.
    pub sensor: u16,
    /// Milliseconds since the trace began.
    pub at_ms: u64,
    /// Confidence of the sensor in percent.
    pub confidence: u8,
}

/// Conclusion of the sensor's function, sent to the actuator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// Number of the sensor.
    pub sensor: u16,
    /// Somebody is there.
    pub present: bool,
}

/// Decision of the actuator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The lamp above this sensor.
    pub lamp: u16,
    /// On or off.
    pub on: bool,
}

impl Event {
    /// From one half on somebody is there; below, it was the wind.
    pub fn sight(self) -> Sighting {
        Sighting {
            sensor: self.sensor,
            present: self.confidence >= 50,
        }
    }
}

impl Sighting {
    /// Light where somebody is.
    pub fn decide(self) -> Decision {
        Decision {
            lamp: self.sensor,
            on: self.present,
        }
    }
}

/// The shape of a trace.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Shortest and longest quiet time between runs.
    pub gap: (Duration, Duration),
    /// Shortest and longest time between the events of a run.
    pub within: (Duration, Duration),
    /// Fewest and most events in a run.
    pub run: (u64, u64),
}

impl Default for Shape {
    /// As it is in a building: 30 s to 5 min of nothing, then 2 to 8 events, 2 to 3 s apart.
    fn default() -> Self {
        let seconds = |low, high| (Duration::from_secs(low), Duration::from_secs(high));
        Self {
            gap: seconds(30, 300),
            within: seconds(2, 3),
            run: (2, 8),
        }
    }
}

impl Shape {
    /// All times divided by `by`, which is at least 1: the same trace, faster.
    pub fn compressed(mut self, by: u32) -> Self {
        for time in [
            &mut self.gap.0,
            &mut self.gap.1,
            &mut self.within.0,
            &mut self.within.1,
        ] {
            *time /= by;
        }
        self
    }
}

/// The events of a trace, in order; the same for the same seed, shape and length. It begins with a
/// gap.
pub fn events(seed: u64, shape: Shape, length: Duration) -> Vec<Event> {
    let (mut rng, mut at, mut events) = (ExampleRng::new(seed), 0, Vec::new());
    loop {
        at += random_millis(&mut rng, shape.gap);
        let sensor = rng.next_between(0, 50) as u16;
        for place in 0..rng.next_between(shape.run.0, shape.run.1 + 1) {
            at += if place > 0 {
                random_millis(&mut rng, shape.within)
            } else {
                0
            };
            if Duration::from_millis(at) >= length {
                return events;
            }
            events.push(Event {
                sensor,
                at_ms: at,
                confidence: rng.next_between(0, 101) as u8,
            });
        }
    }
}

/// At least one millisecond, so that every trace ends.
fn random_millis(rng: &mut ExampleRng, range: (Duration, Duration)) -> u64 {
    let (low, high) = (range.0.as_millis() as u64, range.1.as_millis() as u64);
    rng.next_between(low, high.max(low) + 1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_sure_is_sure_enough() {
        let decide = |confidence| {
            Event {
                sensor: 7,
                at_ms: 0,
                confidence,
            }
            .sight()
            .decide()
        };
        assert_eq!(decide(50), Decision { lamp: 7, on: true });
        assert_eq!(decide(49), Decision { lamp: 7, on: false });
    }

    proptest! {
        #[test]
        fn runs_and_gaps_are_as_long_as_the_shape_says(seed: u64, by in 1u32..100) {
            let (shape, length) = (Shape::default().compressed(by), Duration::from_secs(3600) / by);
            let trace = events(seed, shape, length);
            prop_assert_eq!(&trace, &events(seed, shape, length));
            let millis = |range: (Duration, Duration)| range.0.as_millis() as u64..=range.1.as_millis() as u64 + 1;
            for pair in trace.windows(2) {
                let apart = pair[1].at_ms - pair[0].at_ms;
                prop_assert!(millis(shape.gap).contains(&apart) || millis(shape.within).contains(&apart), "{}", apart);
            }
            prop_assert!(trace.iter().all(|event| Duration::from_millis(event.at_ms) < length));
        }
    }
}
