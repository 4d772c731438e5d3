//! What the simulated coordinator does, by the rules or against one of them.

use super::Rules;
use super::job::{Checkpoint, Heard, Job, Phase, Said, exact};

impl Job {
    pub(super) fn listen(&mut self, name: &str) -> Result<(), String> {
        match self.nodes.get_mut(name).unwrap().said.pop_front() {
            Some(Said::Saved(number, known)) => {
                let pending = self.pending.as_mut().filter(|pending| pending.number == number);
                pending.ok_or("saved what nobody asked for")?.states.insert(name.to_owned(), known);
            }
            Some(Said::Opened(spare)) => self.growth.opened(name, &spare),
            Some(Said::Finished) => self.growth.finished(name),
            None => {}
        }
        self.complete()
    }

    pub(super) fn is_finished(&self, name: &str) -> bool {
        let node = &self.nodes[name];
        node.phase == Phase::Finished && !node.said.iter().any(|said| matches!(said, Said::Finished))
    }

    fn complete(&mut self) -> Result<(), String> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let missing = |name: &&String| !pending.states.contains_key(*name) && !self.is_finished(name);
        if self.nodes.keys().any(|name| missing(&name)) {
            return Ok(());
        }
        let mut done = self.pending.take().unwrap();
        done.finished = self.last.finished.clone();
        let finished = self.nodes.iter().filter(|(name, _)| !done.states.contains_key(*name));
        done.finished.extend(finished.map(|(name, node)| (name.clone(), node.known.clone())));
        self.last = done;
        exact(&self.last)?;
        let too_early = self.last.states.iter().find(|(name, known)| known.ended && self.more_may_come(name));
        too_early.map_or(Ok(()), |(name, _)| Err(format!("{name} had ended, and more may come")))
    }

    /// Whether a worker goes on from the last checkpoint, or may be started then, that this one reads.
    fn more_may_come(&self, name: &str) -> bool {
        let never = |from: &&str| match self.last.states.get(name) {
            Some(known) => known.inputs.get(*from) == Some(&Some(0)),
            None => true,
        };
        let sources = self.topology.worker(name).unwrap().sources().map(|from| &*from.worker);
        sources.filter(never).any(|from| match self.topology.worker(from) {
            _ if self.last.states.contains_key(from) => true,
            _ if self.last.finished.contains_key(from) => false,
            _ => self.more_may_come(from),
        })
    }

    pub(super) fn coordinate(&mut self) {
        if self.pending.is_none() && (self.rules == Rules::NoHold || !self.growth.holds()) && self.chance(3) == 0 {
            self.pending = Some(Checkpoint { number: self.last.number + 1, ..Checkpoint::default() });
            let number = self.last.number + 1;
            self.nodes.values_mut().for_each(|node| node.heard.push_back(Heard::Trigger(number)));
        } else if self.may_change() {
            self.tell();
        }
    }

    fn may_change(&mut self) -> bool {
        match self.rules {
            Rules::NeverAnyTime if self.pending.is_some() => self.growth.give_up_one(),
            Rules::OpenAnyTime => self.growth.between(),
            _ => self.pending.is_none() && self.growth.between(),
        }
    }

    /// New workers start, each worker hears what is to be open.
    fn tell(&mut self) {
        for name in self.growth.grown().into_keys() {
            if !self.nodes.contains_key(&name) && !self.last.finished.contains_key(&name) {
                self.start(&name);
                self.starts += 1;
            }
        }
        for (name, node) in &mut self.nodes {
            node.heard.push_back(Heard::Word(self.growth.word(name)));
        }
    }
}
