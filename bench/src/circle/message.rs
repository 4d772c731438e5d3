//! A lane of whole messages: leases, heads, bodies.

use std::io;
use std::sync::Arc;

use nearpath_shm::{Draft, End, Envelope, Kind, Member, Message, Outgoing, Record, Side, Wire};

use super::{Lane, Seat};

const BODY: [u8; 100] = [7; 100];

pub(super) struct Messages {
    before: End,
    after: End,
    member: Arc<Member>,
    body: Vec<u8>,
}

impl Messages {
    pub(super) fn new(seat: &Seat) -> Self {
        let member = seat.member();
        let [before, _, after] = seat.numbers;
        let mut before = seat.before.0.end(Side::Callee, Arc::clone(&member), before, seat.before.2.clone());
        let mut after = seat.after.0.end(Side::Caller, Arc::clone(&member), after, seat.after.2.clone());
        if let Some([first, second]) = &seat.foreign {
            before = before.strictly(first.clone());
            after = after.strictly(second.clone());
        }
        Self { before, after, member, body: Vec::new() }
    }

    /// The same over the seat's socket.
    pub(super) fn over(seat: &Seat, wire: &Wire) -> Self {
        let Self { before, after, member, body } = Self::new(seat);
        let [first, second] = seat.channels;
        Self { before: before.over(wire.clone(), first), after: after.over(wire.clone(), second), member, body }
    }

    /// A new message with the body at hand.
    fn write(&self, envelope: Envelope) -> io::Result<Outgoing> {
        let mut draft = Draft::new(self.member.claim(256).map_err(io::Error::other)?);
        draft.field(":method", b"POST").map_err(io::Error::other)?;
        draft.field(":path", b"/function/echo").map_err(io::Error::other)?;
        draft.body(&self.body).map_err(io::Error::other)?;
        Ok(draft.finish(envelope))
    }

    /// Before the socket is read.
    pub(super) fn look(&mut self) {
        let _ = (self.before.look(), self.after.look()); // who is closed, `take` tells
    }

    /// What the socket brought; only messages from the party before are anything but a bell.
    pub(super) fn deliver(&mut self, record: &Record) {
        self.before.deliver(record);
    }
}

impl Lane for Messages {
    type Item = Message;

    fn take(&mut self) -> io::Result<Option<Message>> {
        self.before.receive().map_err(io::Error::other)
    }

    fn pass(&mut self, item: Message) -> io::Result<()> {
        self.body.resize(item.body_len() as usize, 0);
        item.copy_body(&mut self.body);
        let worked = item.envelope().status + 1;
        let envelope = Envelope { status: worked, ..*item.envelope() };
        let message = match item.forward(envelope) {
            Some(message) => message,
            None => self.write(envelope)?, // a copy has no slot to go on in
        };
        self.after.send(message).map_err(|fault| io::Error::other(fault.why))
    }

    fn make(&mut self, number: u64) -> io::Result<()> {
        self.body.clear();
        self.body.extend_from_slice(&BODY);
        let message = self.write(Envelope::new(Kind::Event, number))?;
        self.after.send(message).map_err(|fault| io::Error::other(fault.why))
    }

    fn end(&mut self, item: Message) -> (u64, u16) {
        self.body.resize(item.body_len() as usize, 0);
        let whole = item.copy_body(&mut self.body) && self.body == BODY;
        (item.envelope().call, if whole { item.envelope().status } else { u16::MAX })
    }

    fn ready(&mut self) -> bool {
        self.before.ready()
    }

    fn flush(&mut self) {
        self.after.flush();
        self.before.flush();
    }

    fn core_before(&self) -> u32 {
        self.before.desk().core()
    }
}
