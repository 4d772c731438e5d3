//! What a socket is ready for, and the tasks that wait for it.

use std::sync::atomic::{AtomicU8, Ordering};

use futures_util::task::AtomicWaker;
use rustix::event::epoll::EventFlags;

/// Operations that a socket is ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness(u8);

impl Readiness {
    pub(crate) const READ: Self = Self(1);
    pub(crate) const WRITE: Self = Self(2);
    /// The peer has ended its direction, or the connection has failed.
    pub(crate) const END: Self = Self(4);

    /// Returns whether both have something in common.
    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Converts the flags of an event.
    pub(super) fn from_flags(flags: EventFlags) -> Self {
        let has = |flag| flags.contains(flag);
        // HUP: both directions have ended. Reads and writes have the errors.
        let has_failed = has(EventFlags::ERR) || has(EventFlags::HUP);
        let has_ended = has_failed || has(EventFlags::RDHUP);
        let bit = |is_set, readiness: Self| if is_set { readiness.0 } else { 0 };
        Self(
            bit(has(EventFlags::IN) || has_ended, Self::READ)
                | bit(has(EventFlags::OUT) || has_failed, Self::WRITE)
                | bit(has_ended, Self::END),
        )
    }
}

/// Readiness of one socket, with the tasks that wait for it. Shared by the loop and the socket.
#[derive(Debug, Default)]
pub(super) struct Registration {
    readiness: AtomicU8,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Registration {
    pub(super) fn is_ready(&self, readiness: Readiness) -> bool {
        Readiness(self.readiness.load(Ordering::Acquire)).has(readiness)
    }

    /// Notes that an operation would have to wait.
    pub(super) fn clear(&self, readiness: Readiness) {
        // The flag is often clear already, and a load costs less than a locked operation. No event is lost
        // between load and clear: events come from this thread. After a move, the new epoll instance
        // reports the state again.
        if self.is_ready(readiness) {
            self.readiness.fetch_and(!readiness.0, Ordering::AcqRel);
        }
    }

    /// Notes that a read has taken what had arrived. No event tells of an end again: it stays
    /// readable.
    pub(super) fn clear_read(&self) {
        if !self.is_ready(Readiness::END) {
            self.clear(Readiness::READ);
        }
    }

    /// Notes what the socket may be ready for.
    pub(super) fn note(&self, readiness: Readiness) {
        self.readiness.fetch_or(readiness.0, Ordering::AcqRel);
    }

    /// Notes an event and wakes the tasks that wait for it.
    pub(super) fn note_and_wake(&self, readiness: Readiness) {
        self.note(readiness);
        if readiness.has(Readiness::READ) {
            self.reader.wake();
        }
        if readiness.has(Readiness::WRITE) {
            self.writer.wake();
        }
    }

    /// Returns where the task is woken that waits to read, or to write.
    pub(super) fn waker(&self, readiness: Readiness) -> &AtomicWaker {
        match readiness {
            Readiness::WRITE => &self.writer,
            _ => &self.reader,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_stays_readable_and_does_not_stay_writable() {
        let registration = Registration::default();
        let half_closed = Readiness::from_flags(EventFlags::RDHUP | EventFlags::OUT);
        registration.note_and_wake(half_closed);
        registration.clear_read();
        registration.clear(Readiness::WRITE);
        assert!(
            registration.is_ready(Readiness::READ),
            "the end is to be read"
        );
        assert!(
            !registration.is_ready(Readiness::WRITE),
            "a write to a slow reader would be tried without end"
        );
    }

    #[test]
    fn what_would_wait_is_not_ready() {
        let registration = Registration::default();
        registration.note_and_wake(Readiness::from_flags(EventFlags::ERR));
        registration.clear(Readiness::READ);
        assert!(!registration.is_ready(Readiness::READ));
    }

    #[test]
    fn a_failed_connection_is_ready_for_everything() {
        for flag in [EventFlags::ERR, EventFlags::HUP] {
            let readiness = Readiness::from_flags(flag);
            for part in [Readiness::READ, Readiness::WRITE, Readiness::END] {
                assert!(readiness.has(part), "{flag:?}");
            }
        }
    }
}
