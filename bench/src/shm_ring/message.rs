//! A lane of complete messages: leases, heads, bodies.

use std::io;
use std::sync::Arc;

use nearpath_shm::{
    ChannelEnd, ChannelSide, Envelope, MessageDraft, MessageKind, OutgoingMessage, PoolEndpoint,
    ReceivedMessage, SockmapRecord, SockmapSocket,
};

use super::{RingEndpoint, RingLane};

const MESSAGE_BODY: [u8; 100] = [7; 100];

pub(super) struct MessageLane {
    before: ChannelEnd,
    after: ChannelEnd,
    member: Arc<PoolEndpoint>,
    body: Vec<u8>,
}

impl MessageLane {
    pub(super) fn new(endpoint: &RingEndpoint) -> Self {
        let member = endpoint.pool_endpoint();
        let [before, _, after] = endpoint.numbers;
        let mut before = endpoint.before.0.attach_end(
            ChannelSide::Callee,
            Arc::clone(&member),
            before,
            endpoint.before.2.clone(),
        );
        let mut after = endpoint.after.0.attach_end(
            ChannelSide::Caller,
            Arc::clone(&member),
            after,
            endpoint.after.2.clone(),
        );
        if let Some([first, second]) = &endpoint.peer_pools {
            before = before.with_peer_pool(first.clone());
            after = after.with_peer_pool(second.clone());
        }
        Self {
            before,
            after,
            member,
            body: Vec::new(),
        }
    }

    /// Creates a lane over the endpoint's socket.
    pub(super) fn over_sockmap(endpoint: &RingEndpoint, sockmap: &SockmapSocket) -> Self {
        let Self {
            before,
            after,
            member,
            body,
        } = Self::new(endpoint);
        let [first, second] = endpoint.channels;
        Self {
            before: before.via_sockmap(sockmap.clone(), first),
            after: after.via_sockmap(sockmap.clone(), second),
            member,
            body,
        }
    }

    /// Writes a new message with the prepared body.
    fn write_message(&self, envelope: Envelope) -> io::Result<OutgoingMessage> {
        // 256 bytes: the smaller class, into which head and body fit.
        let mut draft = MessageDraft::new(self.member.claim_slot(256).map_err(io::Error::other)?);
        draft
            // The head of a real call: its cost is part of what is compared.
            .add_field(":method", b"POST")
            .map_err(io::Error::other)?;
        draft
            .add_field(":path", b"/function/echo")
            .map_err(io::Error::other)?;
        draft.append_body(&self.body).map_err(io::Error::other)?;
        Ok(draft.finish(envelope))
    }

    /// Polls the rings before the socket is read.
    pub(super) fn poll_messages(&mut self) {
        let _ = (self.before.observe_state(), self.after.observe_state()); // `take` reports a closed channel
    }

    /// Handles a record from the socket; only records from the previous endpoint carry messages.
    pub(super) fn handle_record(&mut self, record: &SockmapRecord) {
        self.before.deliver_record(record);
    }
}

impl RingLane for MessageLane {
    type Item = ReceivedMessage;

    fn take_item(&mut self) -> io::Result<Option<ReceivedMessage>> {
        self.before.receive_message().map_err(io::Error::other)
    }

    fn forward_item(&mut self, item: ReceivedMessage) -> io::Result<()> {
        self.body.resize(item.body_len() as usize, 0);
        // Read even though it is forwarded: a function that ignores its input would be no example.
        item.copy_body(&mut self.body);
        let worked = item.envelope().status + 1;
        let envelope = Envelope {
            status: worked,
            ..*item.envelope()
        };
        let message = match item.forward_with(envelope) {
            Some(message) => message,
            // Between strict pools the slot belongs to the sender, so it cannot go on.
            None => self.write_message(envelope)?, // a copy has no slot to go on in
        };
        self.after
            .send_message(message)
            .map_err(|fault| io::Error::other(fault.error))
    }

    fn make_item(&mut self, number: u64) -> io::Result<()> {
        self.body.clear();
        self.body.extend_from_slice(&MESSAGE_BODY);
        let message = self.write_message(Envelope::new(MessageKind::Event, number))?;
        self.after
            .send_message(message)
            .map_err(|fault| io::Error::other(fault.error))
    }

    fn finish_item(&mut self, item: ReceivedMessage) -> (u64, u16) {
        self.body.resize(item.body_len() as usize, 0);
        let whole = item.copy_body(&mut self.body) && self.body == MESSAGE_BODY;
        (
            item.envelope().call,
            if whole {
                item.envelope().status
            } else {
                // No number of endpoints: the driver reports it as a broken ring.
                u16::MAX
            },
        )
    }

    fn is_ready(&mut self) -> bool {
        self.before.has_incoming()
    }

    fn flush_batch(&mut self) {
        self.after.flush_batch();
        self.before.flush_batch();
    }

    fn previous_core(&self) -> u32 {
        self.before.peer_signal().last_core()
    }
}
