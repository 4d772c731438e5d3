//! Requests per second, generated or written down.

use super::random::SeededRandom;

/// Requests of each second.
#[derive(Debug, Clone)]
pub(super) struct LoadTrace {
    pub(super) name: &'static str,
    pub(super) rates: Vec<f64>,
}

/// Length of [`wave`].
const DAY_SECONDS: usize = 86_400;

impl LoadTrace {
    fn new(name: &'static str, seconds: usize, rate: impl FnMut(usize) -> f64) -> Self {
        let rates = (0..seconds).map(rate).collect();
        Self { name, rates }
    }

    /// Replaces each rate by the arrivals of a Poisson process.
    fn with_poisson_arrivals(mut self, seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        for rate in &mut self.rates {
            *rate = random.next_poisson(*rate);
        }
        self
    }
}

pub(super) fn steady(rate: f64, seconds: usize) -> LoadTrace {
    LoadTrace::new("steady", seconds, |_| rate)
}

/// 10 requests per second, and 1000 after so many seconds.
pub(super) fn step(at: usize, seconds: usize) -> LoadTrace {
    LoadTrace::new("step 10 -> 1000", seconds, |second| match second < at {
        true => 10.0,
        false => 1_000.0,
    })
}

/// Twenty minutes from 10 to 1000 requests per second, ten minutes there, and the same way back.
pub(super) fn ramps() -> LoadTrace {
    let share = |second: usize| match second {
        0..1_200 => second as f64 / 1_200.0,
        1_200..1_800 => 1.0,
        _ => (3_000 - second) as f64 / 1_200.0,
    };
    LoadTrace::new("ramps up and down", 3_000, |second| {
        10.0 + 990.0 * share(second)
    })
}

/// A day between 100 and 1000 requests per second, with Poisson arrivals.
pub(super) fn daily_wave() -> LoadTrace {
    let phase = |second: usize| second as f64 / DAY_SECONDS as f64 * std::f64::consts::TAU;
    LoadTrace::new("daily wave", DAY_SECONDS, |second| {
        550.0 - 450.0 * phase(second).cos()
    })
    .with_poisson_arrivals(7)
}

/// 789 requests in one second, each time after so many seconds without any.
pub(super) fn bursts(pause: usize, count: usize) -> LoadTrace {
    LoadTrace::new("bursts of 789", pause * count, |second| {
        match second % pause {
            10 => 789.0,
            _ => 0.0,
        }
    })
}

/// 1000 requests per second and none, in turn for 30 s each.
pub(super) fn on_and_off() -> LoadTrace {
    LoadTrace::new("on/off every 30 s", 3_600, |second| {
        match (second / 30) % 2 {
            0 => 1_000.0,
            _ => 0.0,
        }
    })
}

/// A rate with evenly distributed noise of so many percent up and down.
pub(super) fn noise(rate: f64, percent: f64, seconds: usize, seed: u64) -> LoadTrace {
    let mut random = SeededRandom::new(seed);
    LoadTrace::new("noise", seconds, |_| {
        rate * (1.0 + percent / 100.0 * (2.0 * random.next_share() - 1.0))
    })
}

pub(super) fn poisson(rate: f64, seconds: usize, seed: u64) -> LoadTrace {
    LoadTrace {
        name: "Poisson",
        ..steady(rate, seconds).with_poisson_arrivals(seed)
    }
}

/// Requests per second of each minute of two hours, in the shape of a shop's front page: slow
/// growth, and a campaign that doubles the load within minutes.
const SHOP_MINUTES: [u16; 120] = [
    212, 208, 219, 225, 221, 230, 238, 233, 241, 247, 252, 249, 258, 263, 260, 271, 275, 281, 278,
    290, 296, 301, 298, 309, 315, 322, 318, 327, 333, 341, 338, 345, 352, 349, 358, 366, 361, 372,
    379, 375, 384, 391, 388, 396, 402, 409, 405, 414, 421, 418, 640, 772, 851, 890, 902, 911, 898,
    884, 871, 860, 842, 829, 811, 797, 780, 766, 748, 735, 719, 706, 688, 675, 659, 646, 630, 618,
    601, 590, 577, 565, 552, 543, 530, 522, 511, 503, 494, 487, 478, 471, 465, 458, 452, 447, 441,
    438, 431, 428, 422, 419, 413, 410, 406, 401, 399, 394, 391, 388, 384, 381, 379, 375, 372, 370,
    366, 364, 361, 359, 356, 354,
];
/// The same in the shape of an interface with regular jobs of its clients: a base load, and four
/// times as much for three minutes of every fifteen.
const JOBS_MINUTES: [u16; 60] = [
    205, 198, 201, 207, 195, 199, 204, 202, 197, 200, 206, 196, 810, 835, 790, 210, 203, 199, 195,
    208, 201, 198, 204, 200, 197, 206, 202, 845, 820, 801, 207, 198, 200, 203, 196, 205, 201, 199,
    204, 197, 202, 208, 795, 828, 812, 204, 200, 196, 207, 203, 198, 201, 205, 199, 202, 197, 206,
    818, 840, 805,
];

/// Traces in the shape of recordings, with Poisson arrivals.
pub(super) fn recorded() -> Vec<LoadTrace> {
    let trace = |name, minutes: &'static [u16]| {
        LoadTrace::new(name, minutes.len() * 60, |second| {
            f64::from(minutes[second / 60])
        })
        .with_poisson_arrivals(11)
    };
    vec![
        trace("shop with a campaign", &SHOP_MINUTES),
        trace("jobs every 15 min", &JOBS_MINUTES),
    ]
}
