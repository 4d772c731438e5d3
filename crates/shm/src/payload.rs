//! The body of a received message as an owner of its bytes, where they lie.
//!
//! For what passes bodies on as bytes: a socket, a hash, another slot. Dropping it releases the slot. A party that breaks the
//! rules of the leases can change the bytes while they are read; so nothing may be concluded from them and believed at a
//! second look. Who must look twice, or does not trust the domain, copies first ([`Message::body`]). What came from a strict
//! peer is a copy already.

use std::sync::atomic::{Ordering, fence};

use crate::desk::Knocker;
use crate::message::Message;

/// A message of which only the body is wanted any more.
#[derive(Debug)]
pub struct Payload {
    /// Nothing only while it is being dropped.
    message: Option<Message>,
    sender: Option<Knocker>,
}

impl Payload {
    /// Keeps the message's slot until it is dropped.
    pub fn new(message: Message) -> Self {
        Self { message: Some(message), sender: None }
    }

    /// The same for a part of a longer body: its sender, which waits until parts are let go, is rung when this one is.
    pub fn part(message: Message, sender: Knocker) -> Self {
        Self { message: Some(message), sender: Some(sender) }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        let Some(message) = &self.message else { return &[] };
        // SAFETY: the lease is held until `self` is dropped, so no party that keeps to the contract writes there. The bytes
        // are plain: one that breaks it changes values, never what is valid; see above for what readers may conclude.
        unsafe { message.body_in_place() }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        drop(self.message.take());
        if let Some(sender) = &self.sender {
            fence(Ordering::SeqCst); // the slot is free before the sender's sleep is looked at
            sender.knock();
        }
    }
}
