//! What a caller counted of its direct calls.

use std::time::Duration;

use super::codec::{FrameReader, put_list, put_text};
use super::{IdentityFrameError, MAX_CALLEES};
use crate::FunctionId;

/// Buckets of the time that calls took: number k holds those below 4^(k+1) µs and no shorter ones, the last one the rest. The same as
/// those of calls through memory.
pub const LATENCY_BUCKETS: usize = 10;

/// Of one callee. What ended is counted since the last time, what is open as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTally {
    /// Who was called.
    pub callee: FunctionId,
    /// Calls that have not ended.
    pub open: u32,
    /// Calls that ended, the failed ones too.
    pub ended: u32,
    /// Of these: answered with 500 or above, or not at all.
    pub failed: u32,
    /// How long they took together, in microseconds.
    pub micros: u64,
    /// How long each took.
    pub latency: [u32; LATENCY_BUCKETS],
}

impl CallTally {
    /// Nothing was counted yet.
    pub fn for_callee(callee: FunctionId) -> Self {
        Self {
            callee,
            open: 0,
            ended: 0,
            failed: 0,
            micros: 0,
            latency: [0; LATENCY_BUCKETS],
        }
    }

    /// The bucket of a call that took so long.
    pub fn bucket_index(took: Duration) -> usize {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        ((u64::BITS - micros.leading_zeros()).saturating_sub(1) as usize / 2)
            .min(LATENCY_BUCKETS - 1)
    }
}

pub(super) fn write_tallies(all: &[CallTally], out: &mut Vec<u8>) {
    put_list(all, MAX_CALLEES, out, |tally, out| {
        put_text(&tally.callee.to_string(), out);
        [tally.open, tally.ended, tally.failed]
            .iter()
            .for_each(|number| out.extend(number.to_le_bytes()));
        out.extend(tally.micros.to_le_bytes());
        tally
            .latency
            .iter()
            .for_each(|number| out.extend(number.to_le_bytes()));
    });
}

pub(super) fn read_tallies(
    from: &mut FrameReader<'_>,
) -> Result<Vec<CallTally>, IdentityFrameError> {
    from.take_list(MAX_CALLEES, |from| {
        let mut tally = CallTally::for_callee(from.take_function()?);
        (tally.open, tally.ended, tally.failed) = (from.u32()?, from.u32()?, from.u32()?);
        tally.micros = from.u64()?;
        for count in &mut tally.latency {
            *count = from.u32()?;
        }
        Ok(tally)
    })
}
