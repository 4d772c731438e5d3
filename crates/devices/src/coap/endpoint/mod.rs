//! The state machine of the endpoint: datagrams, responses and time in, [`CoapEffect`]s out.
//!
//! Sockets, functions and the clock belong to the task around it ([`super`]).

mod response_size;
mod types;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coap_lite::{CoapOption, MessageClass, MessageType, Packet, RequestType, ResponseType};

use super::address_proof::AddressProofs;
use super::blockwise::{BlockOutcome, TransferCache, append_block};
use super::deduplication::{ExchangeCache, ExchangeState};
use super::message::{
    BlockOption, CoapRequest, ResourceRequest, empty_message, encode_uint, parse_request,
};
use super::observers::{ObserverKey, Observers};
use super::retransmission::Retransmissions;
use crate::limits::CoapLimits;
use response_size::put_block;
use types::PendingRequest;
pub(super) use types::{CoapEffect, CoapEvent, CoapResponse};

/// Time after which a request is acknowledged without its response. Below ACK_TIMEOUT, or the
/// client would repeat it.
const PIGGYBACK_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest datagram that is accepted.
pub(super) const MAX_DATAGRAM_BYTES: usize = 2_048;
/// Largest block: 1024 bytes and their header fit into one packet of any network.
const MAX_BLOCK_EXPONENT: u8 = 6;
/// Largest response to an unproven address, in multiples of its request (RFC 9175 section 2.4).
const MAX_AMPLIFICATION: usize = 3;

/// A call whose function has not answered.
#[derive(Debug)]
enum PendingCall {
    Request(Box<PendingRequest>),
    Observation(ObserverKey),
}

/// The endpoint's state.
#[derive(Debug)]
pub(super) struct CoapEndpoint {
    limits: CoapLimits,
    exchanges: ExchangeCache,
    proofs: AddressProofs,
    uploads: TransferCache<(ResourceRequest, Vec<u8>), Vec<u8>>,
    downloads: TransferCache<ResourceRequest, CoapResponse>,
    observers: Observers,
    retransmissions: Retransmissions,
    pending: HashMap<u64, PendingCall>,
    last_call: u64,
    last_message: u16,
}

impl CoapEndpoint {
    /// Begins message numbers at `seed`, which should be hard to guess.
    pub(super) fn new(limits: CoapLimits, seed: u64, now: Instant) -> Self {
        Self {
            // Responses here are one block each, so they need less than whole bodies do.
            exchanges: ExchangeCache::new(limits.max_memory_bytes / 4),
            proofs: AddressProofs::new(now, limits.trust_loopback),
            uploads: TransferCache::new(limits.max_transfers_per_client, limits.max_memory_bytes),
            downloads: TransferCache::new(limits.max_transfers_per_client, limits.max_memory_bytes),
            observers: Observers::new(
                limits.max_observers,
                limits.max_observers_per_client,
                limits.observe_interval,
            ),
            retransmissions: Retransmissions::new(seed),
            pending: HashMap::new(),
            last_call: 0,
            last_message: seed as u16,
            limits,
        }
    }

    /// Returns the number of observations.
    pub(super) fn observer_count(&self) -> usize {
        self.observers.len()
    }

    /// Handles a datagram.
    pub(super) fn handle_datagram(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now: Instant,
        effects: &mut Vec<CoapEffect>,
    ) {
        let parsed = Packet::from_bytes(datagram).ok();
        let Some(packet) = parsed.filter(|packet| !ends_in_marker(packet, datagram)) else {
            return reject_malformed(from, datagram, effects);
        };
        // Unknown versions are ignored silently (RFC 7252 section 3).
        if packet.header.get_version() != 1 || datagram.len() > MAX_DATAGRAM_BYTES {
            return effects.push(CoapEffect::Count(CoapEvent::Malformed));
        }
        let (kind, message) = (packet.header.get_type(), packet.header.message_id);
        match (kind, &packet.header.code) {
            (MessageType::Acknowledgement, _) => {
                if let Some(Some(observer_key)) = self.retransmissions.remove(from, message) {
                    self.observers.acknowledged(&observer_key);
                }
            }
            (MessageType::Reset, _) => {
                if let Some(Some(observer_key)) = self.retransmissions.remove(from, message) {
                    // A reset of a notification ends the observation (RFC 7641 section 3.6).
                    self.observers.remove(&observer_key);
                }
            }
            (_, MessageClass::Request(request)) => {
                self.handle_request(from, &packet, request, datagram.len(), now, effects)
            }
            (_, MessageClass::Reserved(code @ 1..32)) => {
                let unknown = RequestType::UnKnown;
                tracing::debug!(code, "coap: no such method");
                self.handle_request(from, &packet, &unknown, datagram.len(), now, effects);
            }
            // A ping, or a response to no request of ours.
            (MessageType::Confirmable, _) => effects.push(CoapEffect::Send(
                from,
                empty_message(MessageType::Reset, message),
            )),
            (MessageType::NonConfirmable, _) => {
                effects.push(CoapEffect::Count(CoapEvent::Malformed))
            }
        }
    }

    fn handle_request(
        &mut self,
        from: SocketAddr,
        packet: &Packet,
        kind: &RequestType,
        size: usize,
        now: Instant,
        effects: &mut Vec<CoapEffect>,
    ) {
        let (message, confirmable) = (
            packet.header.message_id,
            packet.header.get_type() == MessageType::Confirmable,
        );
        let proven = self.proofs.is_proven(from, now);
        // Before parsing: a repetition costs one lookup, however large its payload is.
        if let Some(state) = self.exchanges.begin((from, message), now) {
            effects.push(CoapEffect::Count(CoapEvent::Duplicate));
            let response = match state {
                ExchangeState::Acknowledged if confirmable => {
                    empty_message(MessageType::Acknowledgement, message)
                }
                ExchangeState::Answered(response) if confirmable => response.clone(),
                _ => return,
            };
            // Measured against this datagram: the repetition may be forged, and shorter than the
            // first.
            if proven || response.len() <= size * MAX_AMPLIFICATION {
                effects.push(CoapEffect::Send(from, response));
            }
            return;
        }
        let parsed = parse_request(packet, kind);
        let pending = PendingRequest {
            from,
            message,
            token: packet.get_token().to_vec(),
            confirmable,
            acknowledged: false,
            acknowledge_at: now + PIGGYBACK_TIMEOUT,
            size,
            resource: ResourceRequest::default(),
            block1: None,
            block2: None,
            observe: false,
        };
        match parsed {
            Ok(request) => self.handle_parsed(pending, request, now, effects),
            Err(code) => self.send_response(
                pending,
                &CoapResponse::without_body(code),
                None,
                now,
                effects,
            ),
        }
    }

    /// Handles a request that could be parsed.
    fn handle_parsed(
        &mut self,
        mut pending: PendingRequest,
        request: CoapRequest,
        now: Instant,
        effects: &mut Vec<CoapEffect>,
    ) {
        // First: a valid echo lifts the limit on this request's own response.
        if let Some(value) = &request.echo {
            self.proofs.verify(pending.from, value, now);
        }
        // On an unsafe method the option is ignored, as RFC 7641 section 2 allows for an elective
        // one.
        let observe = request.observe.filter(|_| request.resource.is_safe());
        if observe == Some(false) {
            self.observers
                .remove(&(pending.from, pending.token.clone()));
        }
        pending.observe = observe == Some(true);
        (pending.block1, pending.block2) = (request.block1, request.block2);
        pending.resource = request.resource.clone();
        let later_block = request.block2.filter(|block| block.number > 0);
        // Later blocks come from the cached response: a second call might answer differently.
        if later_block.is_some() && request.block1.is_none_or(|block| !block.more) {
            if let Some(cached) = self
                .downloads
                .get(pending.from, &pending.resource, now)
                .cloned()
            {
                return self.send_response(pending, &cached, None, now, effects);
            }
            // A GET may run again for its later block; anything else would repeat an effect.
            if pending.resource.method != http::Method::GET {
                return self.send_response(
                    pending,
                    &CoapResponse::without_body(ResponseType::RequestEntityIncomplete),
                    None,
                    now,
                    effects,
                );
            }
        }
        match self.collect_upload(&pending, request, now) {
            Ok(body) => self.start_call(pending, body, effects, now),
            Err(code) => self.send_response(
                pending,
                &CoapResponse::without_body(code),
                None,
                now,
                effects,
            ),
        }
    }

    /// Returns the whole body, or the response code for this block of it.
    fn collect_upload(
        &mut self,
        pending: &PendingRequest,
        request: CoapRequest,
        now: Instant,
    ) -> Result<Bytes, ResponseType> {
        let Some(block) = request.block1 else {
            return Ok(request.payload.into());
        };
        // The tag keeps apart parallel uploads to one resource (RFC 9175 section 3.2).
        let key = (request.resource, request.tag);
        let cached = self.uploads.take(pending.from, &key, now);
        match append_block(cached, block, &request.payload, self.limits.max_body_bytes) {
            BlockOutcome::Complete(body) => Ok(body.into()),
            BlockOutcome::Continue(body) => {
                self.uploads.put(pending.from, key, body, now);
                Err(ResponseType::Continue)
            }
            BlockOutcome::Missing => Err(ResponseType::RequestEntityIncomplete),
            BlockOutcome::TooLarge => Err(ResponseType::RequestEntityTooLarge),
            BlockOutcome::Malformed => Err(ResponseType::BadRequest),
        }
    }

    fn start_call(
        &mut self,
        pending: PendingRequest,
        body: Bytes,
        effects: &mut Vec<CoapEffect>,
        now: Instant,
    ) {
        // Counted by scanning: `max_in_flight` bounds the map to about a thousand entries.
        let of_client = self
            .pending
            .values()
            .filter(|one| matches!(one, PendingCall::Request(other) if other.from == pending.from));
        if of_client.count() >= self.limits.max_in_flight_per_client
            || self.pending.len() >= self.limits.max_in_flight
        {
            effects.push(CoapEffect::Count(CoapEvent::Refused));
            return self.send_response(
                pending,
                &CoapResponse::without_body(ResponseType::ServiceUnavailable),
                None,
                now,
                effects,
            );
        }
        self.last_call += 1;
        effects.push(CoapEffect::Call(
            self.last_call,
            pending.from,
            pending.resource.clone(),
            body,
        ));
        self.pending
            .insert(self.last_call, PendingCall::Request(Box::new(pending)));
    }

    /// Handles the response of a call.
    pub(super) fn complete_call(
        &mut self,
        call: u64,
        response: CoapResponse,
        now: Instant,
        effects: &mut Vec<CoapEffect>,
    ) {
        match self.pending.remove(&call) {
            Some(PendingCall::Request(pending)) => {
                if response.is_success() && !pending.resource.is_safe() {
                    // Only a success can have changed the state that others observe.
                    self.observers.mark_changed(&pending.resource.path, now);
                }
                let sequence = self.register_observer(&pending, &response, now);
                self.send_response(*pending, &response, sequence, now, effects);
            }
            Some(PendingCall::Observation(observer_key)) => {
                self.send_notification(&observer_key, &response, now, effects)
            }
            None => {}
        }
    }

    /// Begins an observation if one is asked for; returns the sequence number of its first
    /// notification.
    fn register_observer(
        &mut self,
        pending: &PendingRequest,
        response: &CoapResponse,
        now: Instant,
    ) -> Option<u32> {
        if !pending.observe || !response.is_success() || !self.proofs.is_proven(pending.from, now) {
            return None;
        }
        // An unproven address must not begin a stream of datagrams to a victim.
        let observer_key = (pending.from, pending.token.clone());
        self.observers.add(
            observer_key,
            pending.resource.clone(),
            pending.block2,
            response.etag(),
            now,
        )
    }

    fn send_notification(
        &mut self,
        observer_key: &ObserverKey,
        response: &CoapResponse,
        now: Instant,
        effects: &mut Vec<CoapEffect>,
    ) {
        let Some((number, resource, block2)) = self.observers.notification_for(
            observer_key,
            response.etag(),
            response.is_success(),
            now,
        ) else {
            return;
        };
        let mut packet = self.new_packet(response, &observer_key.1, MessageType::Confirmable);
        packet.header.message_id = self.next_message_id();
        if response.is_success() {
            packet.add_option(CoapOption::Observe, encode_uint(number));
        }
        let exponent = block2.map_or(MAX_BLOCK_EXPONENT, |block| block.exponent);
        if put_block(
            &mut packet,
            response,
            BlockOption {
                number: 0,
                more: false,
                exponent,
            },
            block2.is_some(),
        ) {
            self.downloads
                .put(observer_key.0, resource, response.clone(), now);
        }
        let bytes = packet.to_bytes_unlimited().unwrap_or_default();
        // An error ended the observation: its acknowledgement concerns no observer.
        let observer = response.is_success().then(|| observer_key.clone());
        self.retransmissions.add(
            observer_key.0,
            self.last_message,
            bytes.clone(),
            observer,
            now,
        );
        effects.extend([
            CoapEffect::Send(observer_key.0, bytes),
            CoapEffect::Count(CoapEvent::Notified),
        ]);
    }

    /// Responds to a request, in the size that the client asked for and its address permits.
    fn send_response(
        &mut self,
        pending: PendingRequest,
        response: &CoapResponse,
        observe: Option<u32>,
        now: Instant,
        effects: &mut Vec<CoapEffect>,
    ) {
        let is_separate = pending.acknowledged;
        let kind = match (pending.confirmable, is_separate) {
            (true, false) => MessageType::Acknowledgement,
            (true, true) => MessageType::Confirmable,
            (false, _) => MessageType::NonConfirmable,
        };
        let number = if kind == MessageType::Acknowledgement {
            pending.message
        } else {
            self.next_message_id()
        };
        let proven = self.proofs.is_proven(pending.from, now);
        let budget = if proven {
            usize::MAX
        } else {
            // The empty acknowledgement, 4 bytes, has used a part of the budget.
            pending.size * MAX_AMPLIFICATION - if is_separate { 4 } else { 0 }
        };
        let encoded = self.encode_response(&pending, response, observe, kind, number, None);
        let (bytes, in_blocks) = match encoded.0.len() <= budget {
            true => encoded,
            false => {
                effects.push(CoapEffect::Count(CoapEvent::Challenged));
                let challenge = self.proofs.challenge(pending.from, now);
                match self
                    .encode_within_budget(&pending, response, kind, number, &challenge, budget)
                {
                    Some(encoded) => encoded,
                    None => return, // not even a refusal fits the budget
                }
            }
        };
        if in_blocks {
            self.downloads.put(
                pending.from,
                pending.resource.clone(),
                response.clone(),
                now,
            );
        }
        self.exchanges.set(
            (pending.from, pending.message),
            ExchangeState::Answered(bytes.clone()),
        );
        if kind == MessageType::Confirmable && proven {
            // Not to an unproven address: repetitions would multiply the response beyond the limit.
            self.retransmissions
                .add(pending.from, number, bytes.clone(), None, now);
        }
        effects.push(CoapEffect::Send(pending.from, bytes));
    }

    fn next_message_id(&mut self) -> u16 {
        self.last_message = self.last_message.wrapping_add(1);
        self.last_message
    }

    /// Sends what is due: acknowledgements, retransmissions, calls for observers.
    pub(super) fn run_timers(&mut self, now: Instant, effects: &mut Vec<CoapEffect>) {
        for call in self.pending.values_mut() {
            let PendingCall::Request(pending) = call else {
                continue;
            };
            if pending.confirmable && !pending.acknowledged && now >= pending.acknowledge_at {
                pending.acknowledged = true;
                self.exchanges
                    .set((pending.from, pending.message), ExchangeState::Acknowledged);
                effects.push(CoapEffect::Send(
                    pending.from,
                    empty_message(MessageType::Acknowledgement, pending.message),
                ));
            }
        }
        for (to, bytes) in self
            .retransmissions
            .take_due(now, |observer_key| self.observers.remove(observer_key))
        {
            effects.extend([
                CoapEffect::Send(to, bytes),
                CoapEffect::Count(CoapEvent::Retransmitted),
            ]);
        }
        for (observer_key, resource) in self.observers.take_due(now) {
            if self.pending.len() >= self.limits.max_in_flight {
                self.observers.postpone(&observer_key, now);
                continue;
            }
            self.last_call += 1;
            effects.push(CoapEffect::Call(
                self.last_call,
                observer_key.0,
                resource,
                Bytes::new(),
            ));
            self.pending
                .insert(self.last_call, PendingCall::Observation(observer_key));
        }
    }

    /// Returns the time of the next timer, if any.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        // Without calls, messages and observers there is no timer: an idle endpoint never wakes.
        let acknowledgements = self.pending.values().filter_map(|call| match call {
            PendingCall::Request(pending) if pending.confirmable && !pending.acknowledged => {
                Some(pending.acknowledge_at)
            }
            _ => None,
        });
        acknowledgements
            .chain(self.retransmissions.next_due())
            .chain(self.observers.next_due())
            .min()
    }
}

impl ResourceRequest {
    /// Returns whether the method is a safe one: it changes nothing.
    pub(super) fn is_safe(&self) -> bool {
        self.is_fetch || self.method == http::Method::GET
    }
}

/// Returns whether a datagram ends in a payload marker without a payload, a format error (RFC 7252
/// section 3). The parser accepts it. The last byte may also belong to an option or to the token:
/// then the message needs it to be encoded again.
fn ends_in_marker(packet: &Packet, datagram: &[u8]) -> bool {
    packet.payload.is_empty()
        && datagram.last() == Some(&0xff)
        && packet
            .to_bytes_unlimited()
            .is_ok_and(|encoded| encoded.len() < datagram.len())
}

fn reject_malformed(from: SocketAddr, datagram: &[u8], effects: &mut Vec<CoapEffect>) {
    effects.push(CoapEffect::Count(CoapEvent::Malformed));
    // RFC 7252 section 4.2: a malformed confirmable message is rejected by a reset.
    if let [head, _, high, low, ..] = datagram
        // Version 1, type confirmable.
        && head & 0xf0 == 0x40
    {
        effects.push(CoapEffect::Send(
            from,
            empty_message(MessageType::Reset, u16::from_be_bytes([*high, *low])),
        ));
    }
}

#[cfg(test)]
mod tests;
