//! Jobs that grow, with everything in any order: frames, words of the coordinator and to it, checkpoints, deaths.
//!
//! Feeds emit numbers, others hand them on, the last stage keeps them. Whenever a checkpoint is complete, what is kept there must be
//! what the feeds had emitted; and at the end, whoever died, all of it must be there once.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use proptest::prelude::*;

use super::tests::chain;
use super::{Growth, Word};
use crate::flow::{Merge, Next, Piece, Start};
use crate::topology::{Limits, Topology, Worker};

/// What a coordinator must not do, for the controls.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    Kept,
    /// Checkpoints begin while streams open.
    NoHold,
    /// Streams open while a checkpoint is under way.
    OpenAnyTime,
    /// Spare workers are given up while a checkpoint is under way.
    NeverAnyTime,
}

/// What a worker knows at its barrier.
#[derive(Clone, Debug, Default)]
struct Known {
    /// A feed's place in what it emits and asks for.
    place: u32,
    kept: Vec<u32>,
    given: usize,
    /// Its inputs have ended: what it makes of them all may be on its way.
    ended: bool,
    inputs: BTreeMap<String, Option<u64>>,
    outputs: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default)]
struct Checkpoint {
    number: u64,
    states: BTreeMap<String, Known>,
    finished: BTreeMap<String, Known>,
}

struct Output {
    to: String,
    sent: u64,
    later: bool,
    open: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Reading,
    Ended,
    /// Its ends have gone out.
    Waiting,
    Finished,
}

struct Node {
    known: Known,
    merge: Merge<u32>,
    inputs: Vec<String>,
    outputs: Vec<Output>,
    turn: usize,
    calls: u64,
    phase: Phase,
    /// Words of the coordinator on their way here, and to it from here.
    heard: VecDeque<Heard>,
    said: VecDeque<Said>,
}

enum Heard {
    Trigger(u64),
    Word(Word),
}

enum Said {
    Saved(u64, Known),
    Opened(String),
    Finished,
}

struct Job {
    topology: Topology,
    rules: Rules,
    seed: u64,
    growth: Growth,
    nodes: BTreeMap<String, Node>,
    streams: BTreeMap<(String, String), VecDeque<Piece<u32>>>,
    pending: Option<Checkpoint>,
    last: Checkpoint,
    starts: usize,
    /// After so many items, about, a worker asks for others.
    asks: usize,
    /// Who does nothing for a while.
    slow: String,
}

/// How many numbers a feed emits.
fn numbers(name: &str) -> u32 {
    if name == "feed.0" { 30 } else { 10 }
}

fn feeds(name: &str) -> bool {
    name.starts_with("feed")
}

impl Job {
    fn new(topology: Topology, rules: Rules, seed: u64) -> Self {
        let growth = Growth::new(&topology, &HashSet::new(), HashSet::new());
        let (nodes, streams) = (BTreeMap::new(), BTreeMap::new());
        let mut job = Self {
            topology,
            rules,
            seed,
            growth,
            nodes,
            streams,
            pending: None,
            last: Checkpoint::default(),
            starts: 0,
            asks: [5, 20, 100][seed as usize / 4 % 3],
            slow: String::new(),
        };
        job.begin();
        job
    }

    fn chance(&mut self, of: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % of
    }

    /// An attempt, from the last checkpoint.
    fn begin(&mut self) {
        let last = self.last.clone();
        let took_part = last.states.keys().cloned().collect();
        self.growth = Growth::new(&self.topology, &took_part, last.finished.keys().cloned().collect());
        (self.pending, self.nodes, self.streams) = (None, BTreeMap::new(), BTreeMap::new());
        let there = |worker: &&Worker| !worker.spare || last.states.contains_key(&worker.name);
        let names: Vec<String> = self.topology.workers.iter().filter(there).map(|worker| worker.name.clone()).collect();
        for name in names.iter().filter(|name| !last.finished.contains_key(*name)) {
            self.start(name);
            if let Some(stage) = self.asks(name) {
                let node = &self.nodes[name];
                let open = node.outputs.iter().filter(|output| output.later && output.open).count();
                self.growth.owe(name, &stage, node.known.given - open);
            }
        }
    }

    /// A stream that carried the checkpoint's barrier is open, or has ended. One with a spare worker that did not is not there; a
    /// worker that is started at run time reads its owner alone.
    fn start(&mut self, name: &str) {
        let worker = self.topology.worker(name).unwrap();
        let owner = self.growth.grown().remove(name);
        let known = self.last.states.get(name).cloned().unwrap_or_default();
        let input = |from: &str, later: bool| match known.inputs.get(from).copied().unwrap_or(Some(0)) {
            _ if owner.is_some() => {
                if owner.as_deref() == Some(from) {
                    Start::After(0)
                } else {
                    Start::Ended
                }
            }
            Some(0) if later => Start::Later,
            Some(processed) if !self.last.finished.contains_key(from) => Start::After(processed),
            _ => Start::Ended,
        };
        let output = |to: &str, later: bool| {
            let sent = known.outputs.get(to).copied().unwrap_or(0);
            Output { to: to.to_owned(), sent, later, open: !later || sent > 0 }
        };
        let node = Node {
            merge: Merge::new(worker.sources().map(|from| input(&from.worker, from.later)), self.last.number),
            inputs: worker.sources().map(|from| from.worker.clone()).collect(),
            outputs: worker.targets().map(|to| output(&to.worker, to.later)).collect(),
            known,
            turn: 0,
            calls: 0,
            phase: Phase::Reading,
            heard: VecDeque::new(),
            said: VecDeque::new(),
        };
        self.nodes.insert(name.to_owned(), node);
    }

    /// The stage of which that worker may ask for more.
    fn asks(&self, name: &str) -> Option<String> {
        let mut targets = self.topology.worker(name)?.targets();
        targets.find(|to| to.later)?.group.clone()
    }

    // What a worker does.

    fn step(&mut self, name: &str) -> Result<(), String> {
        let node = &self.nodes[name];
        match node.phase {
            Phase::Reading if feeds(name) => self.feed(name),
            Phase::Reading => self.read(name)?,
            Phase::Ended => self.end(name),
            Phase::Waiting => self.wait(name),
            Phase::Finished => {}
        }
        Ok(())
    }

    fn feed(&mut self, name: &str) {
        let (is_asking, count) = (self.chance(self.asks) == 0, 1 + self.chance(2));
        let node = self.nodes.get_mut(name).unwrap();
        if let Some(number) = node.merge.due() {
            return self.cut(name, number);
        }
        if node.known.place == numbers(name) {
            node.phase = Phase::Ended;
        } else if is_asking {
            self.ask(name, count);
        } else {
            let item = node.known.place + if name == "feed.0" { 0 } else { 1000 };
            node.known.place += 1;
            self.send(name, Piece::Data(item));
        }
    }

    fn read(&mut self, name: &str) -> Result<(), String> {
        let is_asking = self.chance(self.asks) == 0;
        match self.nodes.get_mut(name).unwrap().merge.step().map_err(|error| format!("{name}: {error}"))? {
            Next::Data { data, .. } => {
                if is_asking {
                    self.ask(name, 1);
                }
                self.send(name, Piece::Data(data));
            }
            Next::Barrier(number) => self.cut(name, number),
            Next::Ended => self.nodes.get_mut(name).unwrap().phase = Phase::Ended,
            Next::Wait => {}
        }
        Ok(())
    }

    fn ask(&mut self, name: &str, count: usize) {
        if let Some(stage) = self.asks(name) {
            let node = self.nodes.get_mut(name).unwrap();
            node.calls += 1;
            node.known.given += self.growth.ask(name, node.calls, &stage, count);
        }
    }

    /// Who has asked waits until all is open; till then barriers pass.
    fn end(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        if let Some(number) = node.merge.due() {
            return self.cut(name, number);
        }
        if node.outputs.iter().filter(|output| output.later && output.open).count() == node.known.given {
            node.phase = Phase::Waiting;
            self.send(name, Piece::End);
        }
    }

    fn wait(&mut self, name: &str) {
        let done = |output: &&Output| {
            let ended =
                |other: &Node| other.merge.has_ended(other.inputs.iter().position(|from| from == name).unwrap());
            self.nodes.get(&output.to).is_some_and(ended)
        };
        let open: Vec<_> = self.nodes[name].outputs.iter().filter(|output| output.open).collect();
        if open.iter().all(done) {
            let node = self.nodes.get_mut(name).unwrap();
            node.phase = Phase::Finished;
            node.said.push_back(Said::Finished);
        }
    }

    /// A number to one that is open, the rest to all.
    fn send(&mut self, name: &str, piece: Piece<u32>) {
        let node = self.nodes.get_mut(name).unwrap();
        let open: Vec<usize> = (0..node.outputs.len()).filter(|&at| node.outputs[at].open).collect();
        let to = match piece {
            Piece::Data(item) if open.is_empty() => return node.known.kept.push(item),
            Piece::Data(_) => {
                node.turn = (node.turn + 1) % open.len();
                open[node.turn..=node.turn].to_vec()
            }
            _ => open,
        };
        for at in to {
            let output = &mut node.outputs[at];
            output.sent += 1;
            self.streams.entry((name.to_owned(), output.to.clone())).or_default().push_back(piece.clone());
        }
    }

    fn cut(&mut self, name: &str, number: u64) {
        self.send(name, Piece::Barrier(number));
        let node = self.nodes.get_mut(name).unwrap();
        let inputs = node.inputs.iter().cloned().zip(node.merge.positions()).collect();
        let outputs = node.outputs.iter().map(|output| (output.to.clone(), output.sent)).collect();
        node.said.push_back(Said::Saved(
            number,
            Known { inputs, outputs, ended: node.phase == Phase::Ended, ..node.known.clone() },
        ));
    }

    fn hear(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        let word = match node.heard.pop_front() {
            Some(Heard::Word(word)) => word,
            Some(Heard::Trigger(number)) => return node.merge.trigger(number),
            None => return,
        };
        for (at, from) in node.inputs.iter().enumerate() {
            if word.inputs.contains(from) {
                node.merge.open(at);
            } else if word.never.contains(from) {
                node.merge.never(at);
            }
        }
        for output in node.outputs.iter_mut().filter(|output| word.outputs.contains(&output.to)) {
            output.open = true;
        }
        node.said.extend(word.inputs.into_iter().chain(word.outputs).map(Said::Opened));
    }

    /// One frame, if its consumer has opened.
    fn carry(&mut self, at: usize) -> Result<(), String> {
        let Some((edge, frames)) = self.streams.iter_mut().nth(at) else { return Ok(()) };
        let Some(node) = self.nodes.get_mut(&edge.1) else { return Ok(()) };
        let input = node.inputs.iter().position(|from| *from == edge.0).unwrap();
        if node.merge.is_later(input) {
            return Ok(());
        }
        let Some(piece) = frames.pop_front() else { return Ok(()) };
        let sequence =
            self.nodes[&edge.0].outputs.iter().find(|output| output.to == edge.1).unwrap().sent - frames.len() as u64;
        let node = self.nodes.get_mut(&edge.1).unwrap();
        node.merge.push(input, sequence, piece).map_err(|error| format!("{edge:?}: {error}"))
    }

    // What the coordinator does.

    fn listen(&mut self, name: &str) -> Result<(), String> {
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

    fn is_finished(&self, name: &str) -> bool {
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

    fn coordinate(&mut self) {
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

    // All of it.

    fn one_of_all(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let name = names[self.chance(names.len())].clone();
        if self.chance(200) == 0 {
            self.slow.clone_from(&name);
        } else if self.slow == name {
            return Ok(());
        }
        match self.chance(10) {
            0..3 => self.step(&name),
            3..7 => {
                let at = self.chance(self.streams.len().max(1));
                self.carry(at)
            }
            7 => {
                self.hear(&name);
                Ok(())
            }
            8 => self.listen(&name),
            _ => {
                self.coordinate();
                Ok(())
            }
        }
    }

    fn run(mut self, deaths: usize) -> Result<usize, String> {
        let mut dies: BTreeSet<usize> = (0..deaths).map(|_| self.chance(4000)).collect();
        for at in 0..100_000 {
            if dies.remove(&at) {
                self.begin();
            }
            if (dies.is_empty() || self.nodes.is_empty()) && self.nodes.keys().all(|name| self.is_finished(name)) {
                let finished = self.nodes.iter().map(|(name, node)| (name.clone(), node.known.clone()));
                let finished = self.last.finished.clone().into_iter().chain(finished).collect();
                exact(&Checkpoint { states: BTreeMap::new(), finished, ..self.last })?;
                return Ok(self.starts);
            }
            self.one_of_all()?;
        }
        Err("it does not end".to_owned())
    }
}

/// All that was emitted is kept, once.
fn exact(at: &Checkpoint) -> Result<(), String> {
    let known = || at.states.iter().chain(&at.finished);
    let emitted = known()
        .filter(|(name, _)| feeds(name))
        .flat_map(|(name, known)| (0..known.place).map(move |item| item + if name == "feed.0" { 0 } else { 1000 }));
    let mut kept: Vec<u32> = known().flat_map(|(_, known)| known.kept.clone()).collect();
    kept.sort_unstable();
    let emitted: Vec<u32> = emitted.collect::<BTreeSet<_>>().into_iter().collect();
    if kept == emitted { Ok(()) } else { Err(format!("at {}: {kept:?} is kept of {emitted:?}", at.number)) }
}

fn job(rules: Rules, seed: u64) -> Job {
    let stages: [&[_]; 3] = [
        &[("feed", 2, 2), ("next", 1, 4), ("out", 2, 2)],
        &[("feed", 2, 2), ("mid", 2, 2), ("next", 1, 3), ("out", 1, 1)],
        &[("feed", 1, 1), ("next", 1, 3), ("nexter", 1, 3), ("out", 2, 2)],
    ];
    let topology = stages.get(seed as usize % 4).map_or_else(apart, |stages| chain(stages));
    Job::new(topology, rules, seed)
}

/// Written down by hand: `out.0` reads what may be started for `feed.0`, but nothing else that comes from there.
fn apart() -> Topology {
    let to = |worker: &str| format!(r#"{{"type": "tcp", "worker": "{worker}", "how": "spread", "group": "next"}}"#);
    let from = |worker: &str| format!(r#"{{"type": "tcp", "worker": "{worker}"}}"#);
    let text = format!(
        r#"{{"workers": [
        {{"name": "feed.0", "inputs": [{{"type": "own"}}], "outputs": [{}, {}]}},
        {{"name": "feed.1", "inputs": [{{"type": "own"}}], "outputs": [{}]}},
        {{"name": "next.0", "stage": "next", "inputs": [{}], "outputs": [{}]}},
        {{"name": "next.1", "stage": "next", "spare": true, "inputs": [{}], "outputs": [{}]}},
        {{"name": "out.0", "inputs": [{}, {}], "outputs": []}},
        {{"name": "out.1", "inputs": [{}], "outputs": []}}]}}"#,
        to("next.0"),
        to("next.1"),
        from("out.0"),
        from("feed.0"),
        from("out.1"),
        from("feed.0"),
        from("out.0"),
        from("next.1"),
        from("feed.1"),
        from("next.0"),
    );
    let topology = Topology::from_json(&text).unwrap();
    topology.check(Limits::default()).unwrap();
    topology
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn growth_keeps_every_cut_exact_whoever_dies(seed in any::<u64>(), deaths in 0..4_usize) {
        let done = job(Rules::Kept, seed).run(deaths);
        prop_assert!(done.is_ok(), "{:?}", done);
    }
}

/// Whether one of many runs does.
fn goes_wrong(rules: Rules) -> bool {
    (0..600).any(|seed| job(rules, seed).run(1).is_err())
}

#[test]
fn jobs_of_the_simulation_grow() {
    assert!((0..50).map(|seed| job(Rules::Kept, seed).run(0).unwrap()).sum::<usize>() > 50);
}

#[test]
fn control_checkpoints_that_are_not_held_back_are_seen() {
    assert!(goes_wrong(Rules::NoHold));
}

#[test]
fn control_streams_that_open_during_a_checkpoint_are_seen() {
    assert!(goes_wrong(Rules::OpenAnyTime));
}

#[test]
fn control_an_end_that_comes_too_early_is_seen() {
    assert!(goes_wrong(Rules::NeverAnyTime));
}
