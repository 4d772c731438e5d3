//! Who comes in, what they say, and how they go.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use nearpath_shm::wire::RECORD;
use nearpath_shm::{Party, Record};
use nearpath_types::InstanceId;
use tokio::sync::mpsc;

use super::{Entrance, Guest, House};
use crate::clock;
use crate::hub::Fault;
use crate::hub::connection::{self, Key, LETTERS, News};
use crate::hub::seat::{self, Seat};
use crate::protocol::{FromNode, FromParty, Hello, Isolation, Refused, VERSION, Welcome};
use crate::registrar::Who;

impl House {
    pub(super) fn open_door(&mut self, who: Who, socket: OwnedFd) {
        let key = self.key();
        let task = tokio::spawn(connection::accept(key, socket, self.news.clone())).abort_handle();
        self.entrances.insert(key, Entrance { who, task });
    }

    pub(super) fn welcome_in(&mut self, who: Who, socket: OwnedFd) {
        let key = self.key();
        let (letters, outbox) = mpsc::channel(LETTERS);
        tokio::spawn(connection::serve(key, socket, outbox, self.news.clone()));
        self.guests.insert(key, Guest { who, party: None, letters, channels: BTreeSet::new() });
    }

    pub(super) fn heed(&mut self, news: News) {
        match news {
            News::Came(door, socket) => {
                let Some(who) = self.entrances.get(&door).map(|entrance| entrance.who.clone()) else { return };
                let there = self.guests.values().filter(|guest| guest.who == who).count();
                if there < self.settings.parties {
                    self.welcome_in(who, socket);
                }
            }
            News::Said(key, said, descriptors) => {
                if let Err(what) = self.said(key, said, descriptors) {
                    self.expel(key, what);
                }
            }
            News::Tried(key, what) => self.judge(key, &what),
            News::Left(key, None) => self.bury(key),
            News::Left(key, Some(what)) => self.expel(key, what),
        }
    }

    fn said(&mut self, key: Key, said: FromParty, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let Some(guest) = self.guests.get(&key) else { return Ok(()) };
        let actions = match (said, guest.party) {
            (FromParty::Hello(hello), None) => return self.hello(key, &hello),
            (FromParty::Hello(_), Some(_)) => return Err("a second hello".into()),
            (_, None) => return Err("it spoke before its hello".into()),
            (FromParty::Ready {}, Some(party)) => self.registrar.ready(party),
            (FromParty::Pool(own), Some(party)) => {
                self.pools.take(party, own, descriptors)?;
                self.registrar.furnished(party)
            }
            (FromParty::Broken(broken), Some(party)) => {
                self.tell_of_break(broken.channel, party);
                self.registrar.broken(party, broken.channel, clock::now()).map_err(|fault| fault.to_string())?
            }
            (FromParty::Drained(drained), Some(party)) => {
                self.registrar.drained(party, drained.channel, clock::now()).map_err(|fault| fault.to_string())?
            }
        };
        self.act(actions);
        Ok(())
    }

    fn hello(&mut self, key: Key, hello: &Hello) -> Result<(), String> {
        let unfit = match hello.version {
            VERSION => seat::unfit(&self.settings, hello),
            _ => Some(format!("this node speaks version {VERSION} of the dispatch protocol")),
        };
        if let Some(why) = unfit {
            self.write(key, &FromNode::Refused(Refused { why: why.clone() }), Vec::new());
            return Err(why);
        }
        let Some(who) = self.guests.get(&key).map(|guest| guest.who.clone()) else { return Ok(()) };
        // A strict party has no channels before its peers can be given its pool.
        let arrived = match self.settings.isolation {
            Isolation::Strict => self.registrar.expect(who.clone(), hello.serves).map(|party| (party, Vec::new())),
            _ => self.registrar.arrive(who.clone(), hello.serves),
        };
        let Some((party, actions)) = arrived else {
            return Err("the domain has no number left for another party".into());
        };
        if hello.stands_in {
            self.registrar.stand_in(party);
        }
        if let Some(guest) = self.guests.get_mut(&key) {
            guest.party = Some(party);
        }
        self.enter(key, party, &who, hello).map_err(|error| format!("its desk cannot be made: {error}"))?;
        self.act(actions);
        Ok(())
    }

    fn enter(&mut self, key: Key, party: Party, who: &Who, hello: &Hello) -> io::Result<()> {
        let (seat, seated) = Seat::make(&self.settings.delivery, (key, party), hello, &self.news)?;
        let (pool, classes) = self.pools.for_newcomer()?;
        let descriptors = pool.into_iter().chain(seated).collect();
        let welcome = Welcome {
            domain: self.settings.name.clone(),
            party: party.get(),
            function: who.function().cloned(),
            instance: who.instance(),
            pool: self.pools.bytes(),
            bound: self.settings.bound,
            capacity: self.settings.capacity,
            delivery: self.settings.delivery.mode(),
            isolation: self.settings.isolation,
            classes,
        };
        self.ledger.came(party, who.clone());
        self.seats.insert(party, seat);
        self.write(key, &FromNode::Welcome(welcome), descriptors);
        Ok(())
    }

    /// A party that sends on a channel that it never had forges it. One that it had has ended in the meantime.
    fn judge(&mut self, key: Key, tried: &[u8]) {
        let Some(guest) = self.guests.get(&key) else { return };
        let (records, rest) = tried.as_chunks::<RECORD>();
        let forged = |channel: &u32| !guest.channels.contains(channel);
        let what = match records.iter().map(|record| Record::from_bytes(record).channel).find(forged) {
            Some(channel) => format!("it sent a descriptor on channel {channel}, which is none of its own"),
            None if !rest.is_empty() => "it sent less than a descriptor".into(),
            None => return,
        };
        self.expel(key, what);
    }

    /// Disconnects who broke the protocol.
    pub(super) fn expel(&mut self, key: Key, what: String) {
        if let Some(guest) = self.guests.get(&key) {
            tracing::warn!(who = ?guest.who, %what, "a party is disconnected");
            let _ = self.faults.send(Fault { instance: guest.who.instance(), what });
        }
        self.bury(key);
    }

    /// The party on this socket is no more.
    fn bury(&mut self, key: Key) {
        let Some(guest) = self.guests.remove(&key) else { return };
        if let Some(party) = guest.party {
            if let Some(exchange) = self.exchange() {
                exchange.unseat(party);
                exchange.revoke(party, 0);
            }
            self.seats.remove(&party);
            self.pools.left(party);
            self.ledger.left(party);
            let actions = self.registrar.left(party, clock::now());
            self.act(actions);
        }
        if let Some(instance) = guest.who.instance() {
            self.quiet_if_empty(instance);
        }
    }

    pub(super) fn gone(&mut self, instance: InstanceId) {
        let of = |who: &Who| who.instance() == Some(instance);
        self.entrances.retain(|_, entrance| {
            let goes = of(&entrance.who);
            if goes {
                entrance.task.abort();
            }
            !goes
        });
        let keys: Vec<Key> = self.guests.iter().filter(|(_, guest)| of(&guest.who)).map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| self.bury(key));
        self.registrar.dismiss(instance);
        self.quiet_if_empty(instance);
    }

    pub(super) fn quiet_if_empty(&mut self, instance: InstanceId) {
        if self.registrar.parties(instance).is_empty() {
            self.is_quiet(instance);
        }
    }
}
