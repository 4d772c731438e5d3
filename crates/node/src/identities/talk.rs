//! The talk with one watchdog, after it was told who it is: what changed of that, whom it may call, its handshakes, its counters.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::frames::{self, BadFrame, Callee, FromWatchdog, Handshake, Tally};
use nearpath_types::{Eip, InstanceAddr, Snapshot};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::callees::{addresses, callees};
use super::halves::Halves;
use super::line::Line;
use super::{Answerer, Caller, Issuer, Surroundings};
use crate::direct::Teller;
use crate::machine::Way;

/// A watchdog is not listened to more often: one that floods its node costs it no more than that.
const PACE: Duration = Duration::from_millis(1);

pub(super) struct Talk {
    line: Line,
    /// It said nothing yet that is no frame.
    heard: bool,
    caller: Caller,
    issuer: Arc<dyn Issuer>,
    around: Surroundings,
    /// What it was told last.
    callees: Vec<Callee>,
    /// To each instance that it may call: a way, or nothing where there is none.
    ways: HashMap<InstanceAddr, Option<Way>>,
    halves: Halves,
    teller: Teller,
}

impl Talk {
    pub(super) fn new(line: Line, caller: Caller, issuer: Arc<dyn Issuer>, around: Surroundings) -> Self {
        let teller = around.direct.teller(caller.function.clone(), caller.instance);
        let (callees, ways, halves) = (Vec::new(), HashMap::new(), Halves::new(Instant::now()));
        Self { line, heard: true, caller, issuer, around, callees, ways, halves, teller }
    }

    /// Goes on until the watchdog has gone, or reads no more.
    pub(super) async fn go_on(mut self, mut frames: mpsc::Receiver<Vec<u8>>) {
        self.around.snapshots.mark_changed();
        let mut issued = true;
        loop {
            let done = tokio::select! {
                frame = frames.recv(), if issued => match frame {
                    Some(frame) => self.line.write(&frame).await,
                    None => {
                        issued = false; // the name is good until the instance is gone
                        Ok(())
                    }
                },
                Ok(()) = self.around.snapshots.changed(), if self.caller.addr.is_some() => self.look().await,
                frame = self.line.next(), if self.heard => {
                    sleep(PACE).await;
                    self.hear(frame).await
                }
                else => return,
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Tells whom it may call, if that has changed.
    async fn look(&mut self) -> io::Result<()> {
        let snapshot = Arc::clone(&self.around.snapshots.borrow_and_update());
        self.open_ways(&snapshot).await;
        let reached = |addr| self.ways.get(&addr).is_some_and(Option::is_some);
        let callees = callees(&snapshot, &self.caller.function, reached);
        if callees == self.callees {
            return Ok(());
        }
        let peers = callees.iter().flat_map(|callee| &callee.peers);
        self.teller.reaches(peers.map(|peer| InstanceAddr(peer.addr)).collect());
        self.callees = callees;
        self.line.write(&frames::callees(&self.callees)).await
    }

    /// Ways are there before anybody is told of them, and until the instance is gone.
    async fn open_ways(&mut self, snapshot: &Snapshot) {
        let there: Vec<_> = addresses(snapshot, &self.caller.function).collect();
        self.ways.retain(|addr, _| there.contains(addr));
        let new: Vec<_> = there.into_iter().filter(|addr| !self.ways.contains_key(addr)).collect();
        let Some(from) = self.caller.addr.filter(|_| !new.is_empty()) else { return };
        let machine = Arc::clone(&self.around.machine);
        let opening = spawn_blocking(move || {
            let way = |to: InstanceAddr| (to, eip(from).zip(eip(to)).and_then(|(from, to)| machine.way(from, to)));
            new.into_iter().map(way).collect::<Vec<_>>()
        });
        self.ways.extend(opening.await.unwrap_or_default()); // a panic there is printed
    }

    /// A frame that is none is the last that is listened to.
    async fn hear(&mut self, frame: io::Result<Option<Vec<u8>>>) -> io::Result<()> {
        let bad = |fault: BadFrame| io::Error::new(io::ErrorKind::InvalidData, fault);
        let read = frame.and_then(|frame| frame.map(|frame| FromWatchdog::read(&frame).map_err(bad)).transpose());
        match read {
            Ok(Some(FromWatchdog::Handshake(half))) => return self.answer(half).await,
            Ok(Some(FromWatchdog::Tallies(all))) => self.count(&all),
            Ok(None) => self.heard = false, // its issuer may still be heard
            Err(fault) => {
                let Caller { function, instance, .. } = &self.caller;
                tracing::warn!(%function, %instance, "its watchdog is not listened to any more: {fault}");
                self.heard = false;
            }
        }
        Ok(())
    }

    /// Only for whom it may call. The work is done elsewhere, one step of an instance at a time.
    async fn answer(&mut self, half: Handshake) -> io::Result<()> {
        let Handshake { callee, datagrams } = half;
        let known = self.callees.iter().flat_map(|callee| &callee.peers).any(|peer| peer.name == callee);
        let Some(from) = self.caller.addr.filter(|_| known) else { return Ok(()) };
        let taken = self.halves.take(&callee, Instant::now(), || self.issuer.answerer(&callee, from.0));
        let step = match taken {
            Some(taken) => spawn_blocking(move || step(taken, &datagrams)).await.ok(), // a panic there is printed
            None => None,
        };
        let datagrams = match step {
            Some((said, going_on)) => {
                going_on.into_iter().for_each(|half| self.halves.put(callee.clone(), half));
                said
            }
            None => Vec::new(),
        };
        self.line.write(&frames::handshake(&Handshake { callee, datagrams })).await
    }

    fn count(&self, all: &[Tally]) {
        let snapshot = self.around.snapshots.borrow();
        let mine = snapshot.functions.iter().find(|route| route.id == self.caller.function);
        let chain = mine.and_then(|route| route.policy.chain.as_ref());
        let declared = |tally: &&Tally| mine.is_some_and(|route| route.policy.may_call(&tally.callee));
        all.iter().filter(declared).for_each(|tally| self.teller.tell(chain, tally));
    }
}

type Half = (Box<dyn Answerer>, u32);

fn step((mut half, steps): Half, datagrams: &[Vec<u8>]) -> (Vec<Vec<u8>>, Option<Half>) {
    let said = half.step(datagrams);
    (said.datagrams, (!said.done).then_some((half, steps)))
}

fn eip(addr: InstanceAddr) -> Option<Eip> {
    match addr.ip() {
        std::net::IpAddr::V4(ip) => Some(Eip(ip)),
        std::net::IpAddr::V6(_) => None,
    }
}
