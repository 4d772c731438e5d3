//! Sending one message of a body: its slot, its entry in the ring, and what stands against it.

use std::sync::Arc;

use nearpath_shm::channel::ChannelSendError;
use nearpath_shm::endpoint::ClaimError;
use nearpath_shm::envelope::flag;
use nearpath_shm::{ChannelEnd, Envelope, Lease, MessageDraft, MessageKind, PoolEndpoint};

use super::types::UnsentReason;
use crate::outbound_body::MAX_PARTS_IN_FLIGHT;

/// Minimum part size when the pool is short of slots.
const MIN_PART_BYTES: u32 = 4096;
/// Progress of sending a message or body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendProgress {
    /// All was sent.
    Sent,
    /// The writer must write first.
    NeedsWriter,
    /// The peer must free ring entries first.
    NeedsRoom,
    /// An endpoint must release a slot first.
    NeedsSlot,
    /// Impossible: the channel is closed, or no slot is large enough.
    Impossible,
}

/// Claims a slot for a body that begins at `start`: for the whole body, or for as much as is
/// available.
pub(super) fn claim_for_body(
    member: &Arc<PoolEndpoint>,
    start: u32,
    body: usize,
) -> Result<Lease, UnsentReason> {
    let largest = member
        .pool()
        .geometry()
        .classes()
        .last()
        .map_or(0, |class| class.size);
    // At least one byte of a body: an empty part makes no progress.
    let least = if body == 0 {
        start
    } else {
        start.saturating_add(1)
    };
    let mut want = u32::try_from(start as usize + body)
        .unwrap_or(u32::MAX)
        .min(largest);
    loop {
        match member.claim_slot(want) {
            Ok(lease) if lease.slot_size() >= least => return Ok(lease),
            Ok(_) | Err(ClaimError::TooLarge) => return Err(UnsentReason::BadHead),
            Err(ClaimError::Bound | ClaimError::Exhausted)
                // Half the size rather than waiting: a body proceeds in smaller parts while large
                // slots are taken.
                if want / 2 >= MIN_PART_BYTES.max(least) =>
            {
                want /= 2
            }
            Err(ClaimError::Bound | ClaimError::Exhausted) => return Err(UnsentReason::NoSlot),
        }
    }
}

pub(super) fn send_draft(
    end: &mut ChannelEnd,
    mut draft: MessageDraft,
    mut envelope: Envelope,
    body: &[u8],
    more: bool,
) -> Result<(), UnsentReason> {
    draft.append_body(body).map_err(|_| UnsentReason::BadHead)?;
    if more {
        envelope.flags |= flag::MORE;
    }
    // A withdrawn channel takes no new calls, but parts and cancels of open ones.
    let begins = !matches!(
        envelope.kind,
        MessageKind::Part | MessageKind::Cancel | MessageKind::Taken
    );
    let message = draft.finish(envelope);
    let sent = if begins {
        end.send_message(message)
    } else {
        end.send_continuation(message)
    };
    sent.map_err(|not| unsent_reason(not.error))
}

pub(super) fn unsent_reason(why: ChannelSendError) -> UnsentReason {
    match why {
        ChannelSendError::Full => UnsentReason::NoCredit,
        ChannelSendError::Closed(state) => UnsentReason::Closed(state),
        // The node reclaimed the slot: a new claim is the remedy.
        ChannelSendError::LeaseLost(_) => UnsentReason::NoSlot,
    }
}

pub(super) fn has_ring_room(end: &mut ChannelEnd, part: bool) -> bool {
    let room = end.free_entries();
    room > 0 && (!part || ((end.channel().capacity() - room) as usize) < MAX_PARTS_IN_FLIGHT)
}
