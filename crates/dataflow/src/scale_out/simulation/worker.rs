//! What a simulated worker does: feeds emit, others hand on, the last keep.

use super::job::{Heard, Job, Known, Node, Output, Phase, Said, feeds, numbers};
use crate::flow::{Next, Piece};

impl Job {
    pub(super) fn step(&mut self, name: &str) -> Result<(), String> {
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

    pub(super) fn hear(&mut self, name: &str) {
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
    pub(super) fn carry(&mut self, at: usize) -> Result<(), String> {
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
}
