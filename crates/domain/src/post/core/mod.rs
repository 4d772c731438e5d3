//! The party itself, without a way to wait: what both drivers turn.

mod answers;
mod asks;
mod bodies;
mod takes;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(feature = "tokio")]
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::{Desk, Member, Side};

use super::inbox::Inbox;
use super::join::{Joined, Settings};
use super::link::{Link, Taking};
use super::rest::Left;
use super::words::{CallError, Incoming, Reply};
use crate::book::{Book, Call};
use crate::clock::Nanos;
use crate::packet;
use crate::protocol::FromParty;

/// How long to wait for somebody to release a slot: nobody rings for that. A bell would make every release look at a word that
/// all parties write, and wake all that wait; this costs a thousand looks a second of a party that is short, and none of others.
const SLOT_RETRY: Duration = Duration::from_millis(1);

pub(in crate::post) type Outcome = Result<Reply, CallError>;

/// See the module.
#[derive(Debug)]
pub(in crate::post) struct Core {
    pub(in crate::post) desk: Desk,
    pub(in crate::post) socket: Arc<OwnedFd>,
    pub(in crate::post) book: Book<Outcome>,
    pub(in crate::post) incoming: VecDeque<Incoming>,
    pub(in crate::post) member: Arc<Member>,
    pub(in crate::post) links: BTreeMap<u32, Link>,
    /// There when the kernel brings the descriptors.
    pub(in crate::post) inbox: Option<Inbox>,
    left: Arc<Left>,
    settings: Settings,
    pub(in crate::post) mail: u32,
    /// Something came on the socket that has to be seen to: the node hung up.
    pub(in crate::post) hung_up: bool,
    /// Channels that ended before the node said so.
    pub(in crate::post) ended: Vec<u32>,
    /// Something was sent, and its receivers have not been rung.
    pub(in crate::post) unrung: bool,
    /// Tasks that wait for credit.
    #[cfg(feature = "tokio")]
    starved: Vec<(nearpath_types::FunctionId, Waker)>,
}

impl Core {
    pub(in crate::post) fn new(joined: Joined, settings: Settings) -> Self {
        let Joined { socket, desk, member, inbox, .. } = joined;
        let own = match &inbox {
            Some(inbox) => desk.knocker().over(inbox.wire.clone(), 0),
            None => desk.knocker(),
        };
        let seed = u64::from(member.party().get()) << 32 ^ crate::clock::now();
        Self {
            mail: desk.mail().wrapping_sub(1), // what came after the welcome is looked for at the first turn
            left: Left::new(own),
            desk,
            socket: Arc::new(socket),
            member,
            inbox,
            settings,
            book: Book::new(seed),
            incoming: VecDeque::new(),
            links: BTreeMap::new(),
            hung_up: false,
            ended: Vec::new(),
            unrung: false,
            #[cfg(feature = "tokio")]
            starved: Vec::new(),
        }
    }

    pub(in crate::post) fn say(&self, message: &FromParty) -> io::Result<()> {
        packet::send(&self.socket, message, &[])
    }

    /// Whether the node has hung up: no new peers, nobody reclaims.
    pub(in crate::post) fn hung_up(&self) -> bool {
        self.hung_up
    }

    /// Whether the node has closed the socket that brings the descriptors.
    #[cfg(feature = "tokio")]
    pub(in crate::post) fn is_cut_off(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| inbox.closed)
    }

    pub(in crate::post) fn functions(&self) -> Vec<nearpath_types::FunctionId> {
        self.book.functions().cloned().collect()
    }

    /// Rings everybody for whom something was sent. Whoever sends calls this, or turns, once its batch is complete: a bell
    /// costs a system call, and its receiver may take the processor at once.
    pub(in crate::post) fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.links.values_mut().for_each(|link| link.end.flush());
        }
    }

    /// Where the answer is expected from, for spinning.
    pub(in crate::post) fn core_of(&self, call: Call) -> u32 {
        let link = self.book.channel(call).and_then(|channel| self.links.get(&channel));
        link.map_or(0, |link| link.end.desk().core())
    }

    /// Takes what has come, sends what has room, ends what is due.
    pub(in crate::post) fn turn(&mut self, now: Nanos) {
        self.read_mail();
        self.read_inbox();
        let mut links = std::mem::take(&mut self.links);
        for (&channel, link) in &mut links {
            self.turn_link(channel, link, now);
        }
        self.links = links;
        self.unrung = false;
        self.heed_readers();
        while let Some(call) = self.book.due(now) {
            if let Some(channel) = self.book.expire(call, Err(CallError::Timeout)) {
                self.cancel(channel, call);
            }
        }
        self.ring();
        self.wind_up();
        #[cfg(feature = "tokio")]
        self.feed();
    }

    fn turn_link(&mut self, channel: u32, link: &mut Link, now: Nanos) {
        let Settings { largest_body: bound, streams, calls_stream, .. } = self.settings;
        let streams = streams || calls_stream && link.side == Side::Callee;
        let taking = Taking { bound, streams, told: self.member.pool().is_own() };
        link.take(taking, |link, came| match link.side {
            Side::Caller => self.answered(channel, link, came, now),
            Side::Callee => self.called(channel, link, came, now),
        });
        if link.is_busy() {
            link.end.collect(); // before its window is looked at
            link.pump(&self.member);
        }
        link.end.flush();
    }

    /// Tells peers that this party sleeps; false when there is something to do.
    #[cfg(feature = "tokio")]
    pub(in crate::post) fn announce(&mut self) -> bool {
        let Self { desk, links, mail, member, left, inbox, starved, book, .. } = self;
        let ready = || {
            let fed = |(function, _): &(_, Waker)| {
                let mut channels = book.channels(function).iter();
                channels.any(|channel| links.get_mut(channel).is_some_and(Link::has_credit_or_starves))
            };
            let fed = starved.iter().any(fed);
            fed || *mail != desk.mail() || left.any() || links.values_mut().any(|link| link.ready(member))
        };
        let sleeps = inbox.is_some() || desk.event().is_some();
        sleeps && desk.announce(ready)
    }

    /// Sleeps at the desk until there is something to do.
    pub(in crate::post) fn wait(&mut self, peer: u32, timeout: Option<Duration>) {
        let Self { desk, links, mail, member, left, inbox, .. } = self;
        let letters = desk.letters();
        let mut ready = || {
            *mail != letters.load(Ordering::Acquire) || left.any() || links.values_mut().any(|link| link.ready(member))
        };
        match inbox {
            None => desk.wait(peer, timeout, ready),
            Some(inbox) if desk.announce(&mut ready) => {
                inbox.wait(timeout);
                desk.rise();
            }
            Some(_) => {}
        }
    }

    /// When to turn again, if nobody rings.
    pub(in crate::post) fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let short = self.links.values().any(|link| link.wants_slot && link.is_busy()); // what wanted it may be given up
        let retry = short.then(|| now + SLOT_RETRY.as_nanos() as u64);
        [self.book.next_deadline(), retry].into_iter().flatten().min()
    }
}
