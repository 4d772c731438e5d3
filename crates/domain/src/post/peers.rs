//! How a party's peers come and go: what the node says on the socket, and what the channels say themselves.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use nearpath_shm::channel::State;
use nearpath_shm::{Channel, Foreign, Knocker, Party, Side};
use nearpath_types::InstanceId;

use super::core::{Core, Outcome};
use super::link::Link;
use super::words::{CallError, Caller};
use crate::book::Book;
use crate::packet::{self, Packet};
use crate::protocol::{self, Broken, Drained, FromNode, FromParty, Gone, Peer, Role};

impl Core {
    /// Ends links that are closed, or withdrawn and done.
    pub(super) fn wind_up(&mut self) {
        let over = |link: &mut Link, book: &Book<Outcome>, channel| {
            let done = |link: &mut Link| {
                let idle = link.side == Side::Caller && link.is_idle() && book.in_flight(channel) == 0;
                idle && link.end.settled()
            };
            link.closed || link.withdrawn && done(link) // asked for every link at every turn: the rest only when it matters
        };
        if !self.links.iter_mut().any(|(&channel, link)| over(link, &self.book, channel)) {
            return;
        }
        let book = &self.book;
        let ended: Vec<u32> = self.links.iter_mut().filter_map(|(&c, link)| over(link, book, c).then_some(c)).collect();
        for channel in ended {
            self.end_link(channel);
        }
    }

    fn end_link(&mut self, channel: u32) {
        let Some(mut link) = self.links.remove(&channel) else { return };
        for call in self.book.bury(channel) {
            self.book.settle(call, Err(CallError::Died));
        }
        self.book.forget(channel);
        self.incoming.retain(|incoming| incoming.event || incoming.channel != channel);
        link.break_all(CallError::Died);
        link.taken.drain().filter_map(|(_, taken)| taken.waker).for_each(Waker::wake);
        link.end.flush(); // takes back what the dead will not take
        match link.end.channel().state() {
            _ if link.withdrawn => self.drained(channel),
            State::Broken => self.broken(channel),
            _ => self.ended.push(channel),
        }
    }

    /// The node ends it for the other side too, and makes another one.
    fn broken(&mut self, channel: u32) {
        if self.say(&FromParty::Broken(Broken { channel })).is_err() {
            self.hung_up = true;
        }
    }

    fn drained(&mut self, channel: u32) {
        if self.say(&FromParty::Drained(Drained { channel })).is_err() {
            self.hung_up = true;
        }
    }

    pub(super) fn read_mail(&mut self) {
        let mail = self.desk.mail();
        if mail != self.mail {
            self.mail = mail;
            self.read_socket();
        }
    }

    /// Takes what the kernel has brought. Without the node's end of the wire nothing comes any more: everything is over.
    pub(super) fn read_inbox(&mut self) {
        let Some(inbox) = &mut self.inbox else { return };
        inbox.fetch(&mut self.links);
        if inbox.closed {
            self.hung_up = true;
            self.links.values_mut().for_each(|link| link.closed = true);
        }
    }

    /// Reads all packets that are there.
    pub(super) fn read_socket(&mut self) {
        while !self.hung_up {
            match packet::receive(&self.socket) {
                Ok(Some(packet)) => self.heed(packet),
                Ok(None) => self.hung_up = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.hung_up = true,
            }
        }
    }

    /// A packet that cannot be understood is passed over: it only says that a peer is not there.
    fn heed(&mut self, packet: Packet) {
        match FromNode::read(&packet.bytes) {
            Ok(Some(FromNode::Peer(peer))) => {
                let channel = peer.channel;
                if self.meet(peer, packet.descriptors).is_err() {
                    self.broken(channel); // what came with it could not be mapped, or was cut off: no descriptors are left here
                }
            }
            Ok(Some(FromNode::Failed(failed))) => self.book.lacks(failed.function, failed.lacks),
            Ok(Some(FromNode::Gone(gone))) => self.gone(gone),
            _ => {}
        }
    }

    fn meet(&mut self, peer: Peer, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(invalid);
        let channel = Channel::open(next()?, peer.capacity)?;
        let pool = peer.pool.map(|bytes| Ok::<_, io::Error>((next()?, bytes))).transpose()?;
        let knocker = Knocker::open(next()?, descriptors.next())?;
        let party = Party::new(peer.party).ok_or_else(invalid)?;
        let side = if peer.side == Role::Caller { Side::Caller } else { Side::Callee };
        let mut end = channel.end(side, Arc::clone(&self.member), party, knocker);
        if self.member.pool().is_own() {
            let (pool, bytes) = pool.ok_or_else(invalid)?;
            match Foreign::open(pool, usize::try_from(bytes).map_err(|_| invalid())?) {
                Ok(source) => end = end.strictly(source),
                Err(error) => {
                    end.break_off(); // the peer has made something that is no pool: it shall hear of it
                    return Err(error);
                }
            }
        }
        if let Some(inbox) = &mut self.inbox {
            end = end.over(inbox.wire.clone(), peer.channel);
            inbox.strays_of(peer.channel).iter().for_each(|record| end.deliver(record));
        }
        let instance = peer.instance.unwrap_or(InstanceId(0));
        let caller = Arc::new(Caller::new(peer.function.clone(), peer.instance));
        if self.links.contains_key(&peer.channel) {
            return Err(invalid());
        }
        if let (Side::Caller, Some(function)) = (side, peer.function) {
            self.book.meet_as(peer.channel, function, instance, &peer.terms);
        }
        let mut link = Link::new(end, side, caller, instance);
        link.events_only = peer.terms.events_only;
        self.links.insert(peer.channel, link);
        Ok(())
    }

    fn gone(&mut self, gone: Gone) {
        let channel = gone.channel;
        if let Some(at) = self.ended.iter().position(|&ended| ended == channel) {
            self.ended.swap_remove(at);
            return self.drained(channel);
        }
        self.book.retire(channel);
        match self.links.get_mut(&channel) {
            Some(link) => {
                link.withdrawn = true;
                if gone.state == protocol::End::Dead && link.end.channel().state() <= State::Withdrawn {
                    // The node closes before it tells; one that does not is believed all the same.
                    let dead = if link.side == Side::Caller { State::CalleeDead } else { State::CallerDead };
                    link.end.channel().close(dead);
                }
            }
            None => {
                self.inbox.iter_mut().for_each(|inbox| drop(inbox.strays_of(channel)));
                self.drained(channel);
            }
        }
    }
}
