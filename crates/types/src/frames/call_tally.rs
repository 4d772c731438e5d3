//! Counters of a caller's direct calls.

use std::time::Duration;

use super::codec::{FrameReader, put_list, put_text};
use super::{IdentityFrameError, MAX_CALLEES};
use crate::FunctionId;

/// Buckets of call latency: bucket k holds calls below 4^(k+1) µs and not below the bound before,
/// the last one the rest. Calls through shared memory have the same.
pub const LATENCY_BUCKETS: usize = 10;

/// Counters of one callee. Ended calls count since the last frame; open ones are a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTally {
    /// Function that was called.
    pub callee: FunctionId,
    /// Calls that have not ended.
    pub open: u32,
    /// Calls that have ended, including failed ones.
    pub ended: u32,
    /// Of these, the failed ones: status 500 or above, or no response.
    pub failed: u32,
    /// Total time in microseconds.
    pub micros: u64,
    /// Calls per bucket of latency.
    pub latency: [u32; LATENCY_BUCKETS],
}

impl CallTally {
    /// Creates counters of zero.
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

    /// Returns the bucket of a latency.
    pub fn bucket_index(took: Duration) -> usize {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // Half of the bit length is the power of four; everything below 4 µs is in the first
        // bucket.
        ((u64::BITS - micros.leading_zeros()).saturating_sub(1) as usize / 2)
            .min(LATENCY_BUCKETS - 1)
    }

    /// Returns the end of a bucket in seconds, exclusive; the last one has none.
    pub fn bucket_bound(bucket: usize) -> Option<f64> {
        (bucket + 1 < LATENCY_BUCKETS).then(|| 4f64.powi(bucket as i32 + 1) / 1e6)
    }
}

pub(super) fn write_tallies(all: &[CallTally], out: &mut Vec<u8>) {
    put_list(all, MAX_CALLEES, out, |tally, out| {
        put_text(&tally.callee.to_string(), out);
        // In the order of the contract.
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
