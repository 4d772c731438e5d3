//! The body of a received message as an owner of its bytes, in place.
//!
//! Suited for code that passes bytes on: a socket, a hash, another slot. Dropping it releases the
//! slot. A faulty endpoint can change the bytes while they are read, so never validate and use them
//! in two reads. Code that must read twice copies first ([`ReceivedMessage::body_copy`]). A message
//! of a strict peer is a copy already.

use std::sync::atomic::{Ordering, fence};

use crate::message::ReceivedMessage;
use crate::wakeup_cell::WakeupSignal;

/// A received message of which only the body is needed.
#[derive(Debug)]
pub struct MessagePayload {
    /// None only while the value is dropped.
    message: Option<ReceivedMessage>,
    sender: Option<WakeupSignal>,
}

impl MessagePayload {
    /// Keeps the slot of the message until the value is dropped.
    pub fn new(message: ReceivedMessage) -> Self {
        Self {
            message: Some(message),
            sender: None,
        }
    }

    /// As [`MessagePayload::new`] for a part of a longer body: dropping it wakes the sender, which
    /// waits for released parts.
    pub fn with_sender(message: ReceivedMessage, sender: WakeupSignal) -> Self {
        Self {
            message: Some(message),
            sender: Some(sender),
        }
    }
}

impl AsRef<[u8]> for MessagePayload {
    fn as_ref(&self) -> &[u8] {
        let Some(message) = &self.message else {
            return &[];
        };
        // SAFETY: the lease is held until `self` is dropped, so no correct endpoint writes there.
        // The bytes are plain data: a faulty endpoint changes values, never validity; see the
        // module documentation.
        unsafe { message.body_in_place() }
    }
}

impl Drop for MessagePayload {
    fn drop(&mut self) {
        drop(self.message.take());
        if let Some(sender) = &self.sender {
            // Pairs with the fence after `announce_sleep`: the slot is free before the sleep flag
            // is read
            fence(Ordering::SeqCst);
            sender.wake();
        }
    }
}
