//! What to do about a datagram, an answer, or the time that passes: decisions only. Sockets, functions and clocks are at
//! the rim ([`super`]), which does what the [`Effect`]s say.

mod shape;
mod words;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coap_lite::{CoapOption, MessageClass, MessageType, Packet, RequestType, ResponseType};

use super::exchanges::{Exchanges, State};
use super::message::{Block, Request, Wanted, empty, read, uint};
use super::observers::{Observers, Whose};
use super::proof::Proofs;
use super::resend::Resends;
use super::transfers::{Kept, Piece, add};
use crate::adapt::CoapLimits;
use shape::slice;
use words::Ask;
pub(super) use words::{Answer, Counted, Effect};

/// A request whose answer takes longer is acknowledged first. Less than ACK_TIMEOUT, after which it would come again.
const PROMPT: Duration = Duration::from_secs(1);
/// Longest datagram that is taken.
pub(super) const LONGEST: usize = 2_048;
/// Largest block: 1024 bytes fit any network's packet with their head.
const LARGEST: u8 = 6;
/// How many times the request an answer may be, to an address that is not proven (RFC 9175 section 2.4).
const AMPLIFICATION: usize = 3;

#[derive(Debug)]
enum Waiting {
    Asked(Box<Ask>),
    Observed(Whose),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Endpoint {
    limits: CoapLimits,
    exchanges: Exchanges,
    proofs: Proofs,
    uploads: Kept<(Wanted, Vec<u8>), Vec<u8>>,
    downloads: Kept<Wanted, Answer>,
    observers: Observers,
    resends: Resends,
    waiting: HashMap<u64, Waiting>,
    last_call: u64,
    last_message: u16,
}

impl Endpoint {
    /// `seed`: where message numbers begin; hard to guess is better.
    pub(super) fn new(limits: CoapLimits, seed: u64, now: Instant) -> Self {
        Self {
            exchanges: Exchanges::new(limits.memory / 4),
            proofs: Proofs::new(now, limits.trust_loopback),
            uploads: Kept::new(limits.transfers, limits.memory),
            downloads: Kept::new(limits.transfers, limits.memory),
            observers: Observers::new(limits.observers, limits.observers_each, limits.observe_interval),
            resends: Resends::new(seed),
            waiting: HashMap::new(),
            last_call: 0,
            last_message: seed as u16,
            limits,
        }
    }

    /// Observations.
    pub(super) fn observers(&self) -> usize {
        self.observers.len()
    }

    /// A datagram came.
    pub(super) fn hear(&mut self, from: SocketAddr, datagram: &[u8], now: Instant, effects: &mut Vec<Effect>) {
        let Ok(packet) = Packet::from_bytes(datagram) else { return malformed(from, datagram, effects) };
        if packet.header.get_version() != 1 || datagram.len() > LONGEST {
            return effects.push(Effect::Count(Counted::Malformed));
        }
        let (kind, message) = (packet.header.get_type(), packet.header.message_id);
        match (kind, &packet.header.code) {
            (MessageType::Acknowledgement, _) => {
                if let Some(Some(whose)) = self.resends.heard(from, message) {
                    self.observers.took(&whose);
                }
            }
            (MessageType::Reset, _) => {
                if let Some(Some(whose)) = self.resends.heard(from, message) {
                    self.observers.remove(&whose);
                }
            }
            (_, MessageClass::Request(request)) => self.request(from, &packet, request, datagram.len(), now, effects),
            (_, MessageClass::Reserved(code @ 1..32)) => {
                let unknown = RequestType::UnKnown;
                tracing::debug!(code, "coap: no such method");
                self.request(from, &packet, &unknown, datagram.len(), now, effects);
            }
            // A ping, or an answer to a question that was not asked.
            (MessageType::Confirmable, _) => effects.push(Effect::Send(from, empty(MessageType::Reset, message))),
            (MessageType::NonConfirmable, _) => effects.push(Effect::Count(Counted::Malformed)),
        }
    }

    fn request(
        &mut self,
        from: SocketAddr,
        packet: &Packet,
        kind: &RequestType,
        size: usize,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let (message, confirmable) = (packet.header.message_id, packet.header.get_type() == MessageType::Confirmable);
        let proven = self.proofs.holds(from, now);
        if let Some(state) = self.exchanges.begin((from, message), now) {
            effects.push(Effect::Count(Counted::Duplicate));
            let again = match state {
                State::Acknowledged if confirmable => empty(MessageType::Acknowledgement, message),
                State::Answered(answer) if confirmable => answer.clone(),
                _ => return,
            };
            if proven || again.len() <= size * AMPLIFICATION {
                effects.push(Effect::Send(from, again));
            }
            return;
        }
        let read = read(packet, kind);
        let ask = Ask {
            from,
            message,
            token: packet.get_token().to_vec(),
            confirmable,
            acknowledged: false,
            acknowledge: now + PROMPT,
            size,
            wanted: Wanted::default(),
            block1: None,
            block2: None,
            observe: false,
        };
        match read {
            Ok(request) => self.take(ask, request, now, effects),
            Err(code) => self.answer(ask, &Answer::bare(code), None, now, effects),
        }
    }

    /// A request that can be read.
    fn take(&mut self, mut ask: Ask, request: Request, now: Instant, effects: &mut Vec<Effect>) {
        if let Some(value) = &request.echo {
            self.proofs.check(ask.from, value, now);
        }
        let watching = request.observe.filter(|_| request.wanted.is_read());
        if watching == Some(false) {
            self.observers.remove(&(ask.from, ask.token.clone()));
        }
        ask.observe = watching == Some(true);
        (ask.block1, ask.block2) = (request.block1, request.block2);
        ask.wanted = request.wanted.clone();
        let later = request.block2.filter(|block| block.number > 0);
        if later.is_some() && request.block1.is_none_or(|block| !block.more) {
            if let Some(kept) = self.downloads.get(ask.from, &ask.wanted, now).cloned() {
                return self.answer(ask, &kept, None, now, effects);
            }
            if ask.wanted.method != http::Method::GET {
                return self.answer(ask, &Answer::bare(ResponseType::RequestEntityIncomplete), None, now, effects);
            }
        }
        match self.gather(&ask, request, now) {
            Ok(body) => self.call(ask, body, effects, now),
            Err(code) => self.answer(ask, &Answer::bare(code), None, now, effects),
        }
    }

    /// The request's whole body, or what to say about this block of it.
    fn gather(&mut self, ask: &Ask, request: Request, now: Instant) -> Result<Bytes, ResponseType> {
        let Some(block) = request.block1 else { return Ok(request.payload.into()) };
        let key = (request.wanted, request.tag);
        let kept = self.uploads.take(ask.from, &key, now);
        match add(kept, block, &request.payload, self.limits.body) {
            Piece::Whole(body) => Ok(body.into()),
            Piece::Continue(body) => {
                self.uploads.put(ask.from, key, body, now);
                Err(ResponseType::Continue)
            }
            Piece::Missing => Err(ResponseType::RequestEntityIncomplete),
            Piece::TooLarge => Err(ResponseType::RequestEntityTooLarge),
            Piece::Malformed => Err(ResponseType::BadRequest),
        }
    }

    fn call(&mut self, ask: Ask, body: Bytes, effects: &mut Vec<Effect>, now: Instant) {
        let theirs = self.waiting.values().filter(|one| matches!(one, Waiting::Asked(other) if other.from == ask.from));
        if theirs.count() >= self.limits.in_flight_each || self.waiting.len() >= self.limits.in_flight {
            effects.push(Effect::Count(Counted::Refused));
            return self.answer(ask, &Answer::bare(ResponseType::ServiceUnavailable), None, now, effects);
        }
        self.last_call += 1;
        effects.push(Effect::Call(self.last_call, ask.from, ask.wanted.clone(), body));
        self.waiting.insert(self.last_call, Waiting::Asked(Box::new(ask)));
    }

    /// A call ended.
    pub(super) fn answered(&mut self, call: u64, answer: Answer, now: Instant, effects: &mut Vec<Effect>) {
        match self.waiting.remove(&call) {
            Some(Waiting::Asked(ask)) => {
                if answer.is_good() && !ask.wanted.is_read() {
                    self.observers.changed(&ask.wanted.path, now);
                }
                let seen = self.register(&ask, &answer, now);
                self.answer(*ask, &answer, seen, now, effects);
            }
            Some(Waiting::Observed(whose)) => self.notify(&whose, &answer, now, effects),
            None => {}
        }
    }

    /// Begins an observation, if one is asked for and may be had: then the number of its first notification.
    fn register(&mut self, ask: &Ask, answer: &Answer, now: Instant) -> Option<u32> {
        if !ask.observe || !answer.is_good() || !self.proofs.holds(ask.from, now) {
            return None;
        }
        let whose = (ask.from, ask.token.clone());
        self.observers.add(whose, ask.wanted.clone(), ask.block2, answer.etag(), now)
    }

    fn notify(&mut self, whose: &Whose, answer: &Answer, now: Instant, effects: &mut Vec<Effect>) {
        let Some((number, wanted, block2)) = self.observers.news(whose, answer.etag(), answer.is_good(), now) else {
            return;
        };
        let mut packet = self.packet(answer, &whose.1, MessageType::Confirmable);
        self.last_message = self.last_message.wrapping_add(1);
        packet.header.message_id = self.last_message;
        if answer.is_good() {
            packet.add_option(CoapOption::Observe, uint(number));
        }
        let exponent = block2.map_or(LARGEST, |block| block.exponent);
        if slice(&mut packet, answer, Block { number: 0, more: false, exponent }, block2.is_some()) {
            self.downloads.put(whose.0, wanted, answer.clone(), now);
        }
        let bytes = packet.to_bytes_unlimited().unwrap_or_default();
        let kept = answer.is_good().then(|| whose.clone());
        self.resends.sent(whose.0, self.last_message, bytes.clone(), kept, now);
        effects.extend([Effect::Send(whose.0, bytes), Effect::Count(Counted::Notified)]);
    }

    /// Answers a request: as large as asked for and as its address permits.
    fn answer(&mut self, ask: Ask, answer: &Answer, observe: Option<u32>, now: Instant, effects: &mut Vec<Effect>) {
        let separate = ask.acknowledged;
        let kind = match (ask.confirmable, separate) {
            (true, false) => MessageType::Acknowledgement,
            (true, true) => MessageType::Confirmable,
            (false, _) => MessageType::NonConfirmable,
        };
        let number = if kind == MessageType::Acknowledgement { ask.message } else { self.next_message() };
        let proven = self.proofs.holds(ask.from, now);
        let budget = if proven { usize::MAX } else { ask.size * AMPLIFICATION - if separate { 4 } else { 0 } };
        let shaped = self.shape(&ask, answer, observe, kind, number, None);
        let (bytes, in_blocks) = match shaped.0.len() <= budget {
            true => shaped,
            false => {
                effects.push(Effect::Count(Counted::Challenged));
                let challenge = self.proofs.challenge(ask.from, now);
                match self.shrink(&ask, answer, kind, number, &challenge, budget) {
                    Some(shaped) => shaped,
                    None => return, // not even a refusal fits: silence
                }
            }
        };
        if in_blocks {
            self.downloads.put(ask.from, ask.wanted.clone(), answer.clone(), now);
        }
        self.exchanges.set((ask.from, ask.message), State::Answered(bytes.clone()));
        if kind == MessageType::Confirmable && proven {
            self.resends.sent(ask.from, number, bytes.clone(), None, now);
        }
        effects.push(Effect::Send(ask.from, bytes));
    }

    fn next_message(&mut self) -> u16 {
        self.last_message = self.last_message.wrapping_add(1);
        self.last_message
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for waiting in self.waiting.values_mut() {
            let Waiting::Asked(ask) = waiting else { continue };
            if ask.confirmable && !ask.acknowledged && now >= ask.acknowledge {
                ask.acknowledged = true;
                self.exchanges.set((ask.from, ask.message), State::Acknowledged);
                effects.push(Effect::Send(ask.from, empty(MessageType::Acknowledgement, ask.message)));
            }
        }
        for (to, bytes) in self.resends.due(now, |whose| self.observers.remove(whose)) {
            effects.extend([Effect::Send(to, bytes), Effect::Count(Counted::Resent)]);
        }
        for (whose, wanted) in self.observers.due(now) {
            if self.waiting.len() >= self.limits.in_flight {
                self.observers.put_off(&whose, now);
                continue;
            }
            self.last_call += 1;
            effects.push(Effect::Call(self.last_call, whose.0, wanted, Bytes::new()));
            self.waiting.insert(self.last_call, Waiting::Observed(whose));
        }
    }

    /// When something is due next; `None`: nothing waits.
    pub(super) fn next(&self) -> Option<Instant> {
        let acknowledge = self.waiting.values().filter_map(|waiting| match waiting {
            Waiting::Asked(ask) if ask.confirmable && !ask.acknowledged => Some(ask.acknowledge),
            _ => None,
        });
        acknowledge.chain(self.resends.next()).chain(self.observers.next()).min()
    }
}

impl Wanted {
    /// Whether it changes nothing, by its method.
    pub(super) fn is_read(&self) -> bool {
        self.fetch || self.method == http::Method::GET
    }
}

fn malformed(from: SocketAddr, datagram: &[u8], effects: &mut Vec<Effect>) {
    effects.push(Effect::Count(Counted::Malformed));
    // RFC 7252 section 4.2: who demands an answer to what cannot be read is told so.
    if let [head, _, high, low, ..] = datagram
        && head & 0xf0 == 0x40
    {
        effects.push(Effect::Send(from, empty(MessageType::Reset, u16::from_be_bytes([*high, *low]))));
    }
}

#[cfg(test)]
mod tests;
