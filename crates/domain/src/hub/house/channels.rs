//! What the registrar decides, done: channels are made, introduced, closed and forgotten.

use std::io;
use std::os::fd::AsFd;

use nearpath_shm::channel::State;
use nearpath_shm::{Channel, Party, Side, reclaim};

use super::{House, Line};
use crate::clock;
use crate::hub::edges;
use crate::hub::pools::Pools;
use crate::protocol::{Failed, FromNode, Gone, Lack, Peer, Role, Terms};
use crate::registrar::{Action, Closing, Who};

impl House {
    pub(super) fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { channel, caller, callee } => {
                    if let Err((error, told)) = self.open(channel, caller, callee) {
                        self.unopened(channel, caller, callee, &error, told);
                    }
                }
                Action::Close { channel, how } => self.close_line(channel, how),
                Action::Tell { party, channel, state } => {
                    self.write_to(party, &FromNode::Gone(Gone { channel, state }), Vec::new());
                }
                Action::Forget { channel } => self.forget(channel),
                Action::Sweep => self.sweep(),
                Action::Quiet { instance } => self.is_quiet(instance),
            }
        }
    }

    /// The error, and who has been told of the channel nevertheless.
    fn open(&mut self, number: u32, caller: Party, callee: Party) -> Result<(), (io::Error, Option<Party>)> {
        let nobody = |error| (error, None);
        let channel = Channel::create(self.settings.capacity).map_err(nobody)?;
        if let Some(exchange) = self.exchange() {
            exchange.permit(caller, number, callee).map_err(nobody)?;
            exchange.permit(callee, number, caller).map_err(nobody)?;
        }
        let function = |party| self.registrar.who(party).and_then(Who::function).cloned();
        let edge: edges::Key = (function(caller), function(callee));
        self.ledger.opened(number, edge, channel.clone(), caller, callee);
        self.lines.insert(number, Line { channel: channel.clone(), caller, callee });
        // The callee first: when the caller's first call rings, it may look for the channel on its socket.
        self.introduce(number, &channel, callee, caller, Role::Callee).map_err(nobody)?;
        self.introduce(number, &channel, caller, callee, Role::Caller).map_err(|error| (error, Some(callee)))
    }

    /// The caller hears what is lacking, so that its calls end with the cause; the next try comes by itself.
    fn unopened(&mut self, number: u32, caller: Party, callee: Party, error: &io::Error, told: Option<Party>) {
        let who = |party| self.registrar.who(party).cloned();
        tracing::error!(%error, caller = ?who(caller), callee = ?who(callee), "a channel cannot be made; it is tried again");
        let function = self.registrar.who(callee).and_then(Who::function).cloned();
        let aliases = self.terms(caller, callee, Role::Caller).aliases;
        for function in function.into_iter().chain(aliases) {
            self.write_to(caller, &FromNode::Failed(Failed { function, lacks: Lack::of(error) }), Vec::new());
        }
        let actions = self.registrar.failed(number, told, clock::now());
        self.act(actions);
    }

    pub(super) fn tell_of_break(&self, number: u32, by: Party) {
        let Some(line) = self.lines.get(&number).filter(|line| line.caller == by || line.callee == by) else { return };
        let who = |party| self.registrar.who(party);
        tracing::warn!(caller = ?who(line.caller), callee = ?who(line.callee), told_by = by.get(), "a channel is broken");
    }

    fn introduce(&mut self, number: u32, channel: &Channel, to: Party, peer: Party, side: Role) -> io::Result<()> {
        let (Some(seat), Some(who)) = (self.seats.get(&peer), self.registrar.who(peer)) else { return Ok(()) };
        let pool = self.pools.of(peer)?;
        let told = pool.as_ref().map(|_| self.pools.bytes());
        let mut descriptors = vec![channel.as_fd().try_clone_to_owned()?];
        descriptors.extend(pool);
        descriptors.extend(seat.descriptors()?);
        let message = Peer {
            channel: number,
            side,
            party: peer.get(),
            function: who.function().cloned(),
            instance: who.instance(),
            capacity: channel.capacity(),
            pool: told,
            terms: self.terms(to, peer, side),
        };
        if let Some(guest) = self.seats.get(&to).and_then(|seat| self.guests.get_mut(&seat.key)) {
            guest.channels.insert(number);
        }
        self.write_to(to, &FromNode::Peer(message), descriptors);
        Ok(())
    }

    /// Those of the edge between two parties; `side`: what `one` is.
    fn terms(&self, one: Party, other: Party, side: Role) -> Terms {
        let function = |party| self.registrar.who(party).and_then(Who::function).cloned();
        let (caller, callee) = if side == Role::Caller { (one, other) } else { (other, one) };
        let edge = function(caller).zip(function(callee));
        edge.and_then(|edge| self.terms.get(&edge)).cloned().unwrap_or_default()
    }

    fn close_line(&mut self, number: u32, how: Closing) {
        let Some(line) = self.lines.get(&number) else { return };
        line.channel.close(match how {
            Closing::Withdrawn => State::Withdrawn,
            Closing::Caller => State::CallerDead,
            Closing::Callee => State::CalleeDead,
            Closing::Broken => State::Broken,
        });
        for party in [line.caller, line.callee] {
            self.seats.get(&party).into_iter().for_each(|seat| seat.doorbell().knock());
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(line) = self.lines.remove(&number) {
            if let Some(exchange) = self.exchange() {
                exchange.revoke(line.caller, number);
                exchange.revoke(line.callee, number);
            }
            self.ledger.closed(number);
        }
    }

    fn sweep(&mut self) {
        let lines = &self.lines;
        let in_ring = |from: Party, to: Party, slot, generation| {
            lines.values().any(|line| {
                let held = |by| line.channel.holds(by, slot, generation);
                (line.caller, line.callee) == (from, to) && held(Side::Caller)
                    || (line.callee, line.caller) == (from, to) && held(Side::Callee)
            })
        };
        if let Pools::Shared(pool) = &self.pools {
            let swept = reclaim::sweep(pool, |party| self.registrar.lives(party), in_ring);
            tracing::debug!(?swept, domain = %self.settings.name, "swept");
        }
        let free = |party: &Party| !self.pools.bear(*party);
        let rested: Vec<Party> = self.registrar.resting().filter(free).collect();
        rested.into_iter().for_each(|party| self.registrar.rested(party));
    }
}
