//! Which processor a chain's instances share, if any: a pure decision over what was measured.
//!
//! A wake-up on the same processor costs a fifth of one across processors, so a chain that one processor is enough for
//! is better off on one. A chain that burns CPU must not be locked in there while others idle. So [`Seat::look`] is
//! asked again and again with what the chain and the processors have done since: it gives a small chain a processor and
//! takes it away when it gets tight. Each time that was a mistake the next try comes later. The rim is [`placer`].

pub(crate) mod placer;
#[cfg(test)]
mod simulation;

use nearpath_types::policy::Placement;

/// A chain that uses no more than this of a processor may get one to share.
pub const SMALL: f64 = 0.5;
/// A chain that uses this much of the processor that it shares has too little there.
pub const FULL: f64 = 0.8;
/// A processor that is busy for no more than this takes a chain in.
pub const ROOMY: f64 = 0.6;
/// A processor that is busy for this much is tight for who is on it.
pub const TIGHT: f64 = 0.9;
/// Looks in a row at which a chain was small before it gets a processor.
pub const CALM: u32 = 2;
/// Looks that a chain which had to leave stays away, the first time and at most.
pub const AWAY: (u32, u32) = (8, 256);
/// Looks on one processor after which leaving counts as the first time again.
pub const SETTLED: u32 = 64;

/// A processor over the time since the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Core {
    /// Its number.
    pub number: usize,
    /// The share of the time in which it was busy, with anything: 0 to 1.
    pub busy: f64,
    /// Chains that sit there, this one left out.
    pub seats: u32,
}

/// Where a chain is, and what it has learnt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seat {
    core: Option<usize>,
    /// Looks in a row at which it was small, or which it has sat here.
    calm: u32,
    /// Looks that it still stays away.
    away: u32,
    /// How long it stayed away the last time.
    penalty: u32,
}

impl Seat {
    /// The processor that it is on; none: all.
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// What a wish alone decides, without a measurement: `core` gets one at once. The cores are those that the node may use.
    pub fn obey(&mut self, wish: Placement, cores: &[Core]) -> Option<usize> {
        let there = |number| cores.iter().any(|core| core.number == number);
        self.core = self.core.filter(|&number| there(number) && cores.len() > 1);
        match wish {
            Placement::Spread => *self = Self::default(),
            Placement::Core if cores.len() > 1 => self.core = self.core.or_else(|| roomiest(cores, f64::INFINITY)),
            Placement::Core | Placement::Auto => {}
        }
        self.core
    }

    /// Decides. `used`: the time that the chain's instances ran since the last look, in processors.
    pub fn look(&mut self, wish: Placement, used: f64, cores: &[Core]) -> Option<usize> {
        self.obey(wish, cores);
        if wish == Placement::Auto && cores.len() > 1 {
            match self.core {
                Some(number) if is_tight(number, used, cores) => self.leave(),
                Some(_) => self.stay(),
                None => self.wait(used, cores),
            }
        }
        self.core
    }

    fn leave(&mut self) {
        let (first, most) = AWAY;
        self.penalty = if self.penalty == 0 { first } else { (2 * self.penalty).min(most) };
        (self.core, self.calm, self.away) = (None, 0, self.penalty);
    }

    fn stay(&mut self) {
        self.calm = self.calm.saturating_add(1);
        if self.calm >= SETTLED {
            self.penalty = 0;
        }
    }

    fn wait(&mut self, used: f64, cores: &[Core]) {
        self.away = self.away.saturating_sub(1);
        self.calm = if used <= SMALL { self.calm.saturating_add(1) } else { 0 };
        if self.away == 0 && self.calm >= CALM {
            self.core = roomiest(cores, ROOMY);
            self.calm = 0;
        }
    }
}

/// Whether a chain lacks time there, be it by its own fault or by others'. Also where nowhere is better: together it would wait
/// behind those others as a batch, spread it interrupts them.
fn is_tight(number: usize, used: f64, cores: &[Core]) -> bool {
    let busy = |core: &Core| core.number == number && core.busy >= TIGHT;
    used >= FULL || cores.iter().any(busy)
}

/// Of the processors that are busy for at most so much, the one with the fewest chains and the most time.
fn roomiest(cores: &[Core], most: f64) -> Option<usize> {
    let load = |core: &Core| core.busy + 0.1 * f64::from(core.seats);
    let roomy = cores.iter().filter(|core| core.busy <= most);
    roomy.min_by(|a, b| load(a).total_cmp(&load(b))).map(|core| core.number)
}
