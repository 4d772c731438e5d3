//! Many inputs, one reader: fair, and cut by barriers at one place.
//!
//! A barrier with number n stops its input until every other input has it or has ended; only then the reader gets it, once
//! (Carbone et al., *Lightweight Asynchronous Snapshots for Distributed Dataflows*, 2015). So what was read before it is
//! exactly what all producers sent before theirs. A worker with no input left, as a source always is, takes its barriers
//! from [`Merge::trigger`].
//!
//! An input may be there [`Start::Later`]: barriers do not wait for it, but the reader does not end before it is known whether it
//! opens ([`Merge::open`]) or never does ([`Merge::never`]). Both are only said between two checkpoints ([`crate::scale_out`]).

use std::collections::{BTreeSet, VecDeque};

/// What comes on an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<T> {
    /// A batch.
    Data(T),
    /// The checkpoint of this number is here.
    Barrier(u64),
    /// Nothing follows.
    End,
}

/// How an input begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Behind the frame of that number; 0: at its beginning.
    After(u64),
    /// It has ended.
    Ended,
    /// It may open while the job runs.
    Later,
}

/// What the reader is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Process this.
    Data {
        /// Which input it came from.
        input: usize,
        /// The batch.
        data: T,
    },
    /// Write down what is known, then hand the barrier on.
    Barrier(u64),
    /// All inputs have ended.
    Ended,
    /// Nothing is there.
    Wait,
}

/// A frame that cannot come now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum OutOfOrder {
    #[error("frame {came} came where {awaited} was awaited: something was lost or came twice")]
    Sequence { awaited: u64, came: u64 },
    #[error("barrier {came} came after barrier {last}")]
    Barrier { last: u64, came: u64 },
    #[error("barriers {left} and {right} came side by side: a producer left one out")]
    Apart { left: u64, right: u64 },
    #[error("a frame came after the end, or before the stream was open")]
    Ended,
}

#[derive(Clone, Debug)]
struct Input<T> {
    queue: VecDeque<Piece<T>>,
    /// The number of the next frame to come.
    awaited: u64,
    /// Of the last frame that the reader has finished with.
    processed: u64,
    last_barrier: u64,
    /// Nothing may come: it is not open yet, or the end came, which may still be in the queue.
    closed: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Whether it opens is not known yet.
    Later,
    Open,
    /// Its barrier is here, another input's is not.
    Aligned(u64),
    /// The reader has seen the end.
    Ended,
    /// It never opens.
    Never,
}

impl<T> Input<T> {
    fn new(start: Start, last_barrier: u64) -> Self {
        let (state, processed) = match start {
            Start::After(processed) => (State::Open, processed),
            Start::Ended => (State::Ended, 0),
            Start::Later => (State::Later, 0),
        };
        let closed = state != State::Open;
        Self { queue: VecDeque::new(), awaited: processed + 1, processed, last_barrier, closed, state }
    }
}

/// All inputs of a worker.
#[derive(Clone, Debug)]
pub struct Merge<T> {
    inputs: Vec<Input<T>>,
    /// Which input is looked at first.
    turn: usize,
    /// What was read last, and is processed when more is asked for.
    reading: Option<usize>,
    /// Barriers to begin here, should there be no input left.
    triggers: BTreeSet<u64>,
    last_barrier: u64,
}

impl<T> Merge<T> {
    /// Inputs, and the last checkpoint's number (0: none).
    pub fn new(inputs: impl IntoIterator<Item = Start>, last_barrier: u64) -> Self {
        let inputs = inputs.into_iter().map(|start| Input::new(start, last_barrier)).collect();
        Self { inputs, turn: 0, reading: None, triggers: BTreeSet::new(), last_barrier }
    }

    /// An input that was to open later is open: its first frame has number 1, and the next barrier is awaited on it, too.
    /// Says nothing new about any other input.
    pub fn open(&mut self, input: usize) {
        if self.inputs[input].state == State::Later {
            self.inputs[input] = Input::new(Start::After(0), self.last_barrier);
        }
    }

    /// An input that was to open later never does.
    pub fn never(&mut self, input: usize) {
        if self.inputs[input].state == State::Later {
            self.inputs[input].state = State::Never;
        }
    }

    /// Whether that input's fate is open.
    pub fn is_later(&self, input: usize) -> bool {
        self.inputs[input].state == State::Later
    }

    /// A frame came.
    ///
    /// # Errors
    /// A number or a barrier that is not the next one.
    pub fn push(&mut self, input: usize, sequence: u64, piece: Piece<T>) -> Result<(), OutOfOrder> {
        let input = &mut self.inputs[input];
        if input.closed {
            return Err(OutOfOrder::Ended);
        }
        if sequence != input.awaited {
            return Err(OutOfOrder::Sequence { awaited: input.awaited, came: sequence });
        }
        match piece {
            Piece::Barrier(came) if came <= input.last_barrier => {
                return Err(OutOfOrder::Barrier { last: input.last_barrier, came });
            }
            Piece::Barrier(came) => input.last_barrier = came,
            Piece::End => input.closed = true,
            Piece::Data(_) => {}
        }
        input.awaited += 1;
        input.queue.push_back(piece);
        Ok(())
    }

    /// A checkpoint begins. Counts only when no input is open; else it comes with the inputs' barriers.
    pub fn trigger(&mut self, barrier: u64) {
        if barrier > self.last_barrier {
            self.triggers.insert(barrier);
        }
    }

    /// The barrier that begins here, now. Once for each.
    pub fn due(&mut self) -> Option<u64> {
        if !self.none_open() {
            return None;
        }
        let barrier = self.triggers.pop_first()?;
        self.last_barrier = barrier;
        Some(barrier)
    }

    fn all_ended(&self) -> bool {
        self.inputs.iter().all(|input| matches!(input.state, State::Ended | State::Never))
    }

    /// No input can bring a barrier.
    fn none_open(&self) -> bool {
        self.inputs.iter().all(|input| matches!(input.state, State::Ended | State::Later | State::Never))
    }

    /// What is next. What was given before counts as processed.
    ///
    /// # Errors
    /// Inputs at different barriers, which no order of correct producers brings about.
    pub fn step(&mut self) -> Result<Next<T>, OutOfOrder> {
        self.finish_reading();
        for offset in 0..self.inputs.len() {
            let at = (self.turn + offset) % self.inputs.len();
            if let Some(data) = self.take(at) {
                (self.turn, self.reading) = (at + 1, Some(at));
                return Ok(Next::Data { input: at, data });
            }
        }
        self.aligned()
    }

    /// What was given last is processed.
    pub fn finish_reading(&mut self) {
        if let Some(at) = self.reading.take() {
            self.inputs[at].processed += 1;
        }
    }

    /// A batch of that input; on the way, an end or a barrier is taken note of.
    fn take(&mut self, at: usize) -> Option<T> {
        let input = &mut self.inputs[at];
        if input.state != State::Open {
            return None;
        }
        match input.queue.pop_front()? {
            Piece::Data(data) => return Some(data),
            Piece::Barrier(barrier) => input.state = State::Aligned(barrier),
            Piece::End => {
                input.state = State::Ended;
                input.processed += 1;
            }
        }
        None
    }

    /// Whether a barrier is complete. Inputs before the turn were looked at in this round, too.
    fn aligned(&mut self) -> Result<Next<T>, OutOfOrder> {
        if self.all_ended() {
            return Ok(Next::Ended);
        }
        if self.none_open() {
            return Ok(self.due().map_or(Next::Wait, Next::Barrier));
        }
        let mut common = None;
        for input in &self.inputs {
            match (input.state, common) {
                (State::Ended | State::Later | State::Never, _) => {}
                (State::Aligned(left), Some(right)) if left != right => return Err(OutOfOrder::Apart { left, right }),
                (State::Aligned(barrier), _) => common = Some(barrier),
                (State::Open, _) => return Ok(Next::Wait),
            }
        }
        Ok(common.map_or(Next::Wait, |barrier| self.pass(barrier)))
    }

    fn pass(&mut self, barrier: u64) -> Next<T> {
        for input in &mut self.inputs {
            if matches!(input.state, State::Aligned(_)) {
                input.state = State::Open;
                input.processed += 1;
            }
        }
        self.last_barrier = barrier;
        self.triggers = self.triggers.split_off(&(barrier + 1));
        Next::Barrier(barrier)
    }

    /// The number up to which everything of that input is processed: what its producer is told.
    pub fn processed(&self, input: usize) -> u64 {
        self.inputs[input].processed
    }

    /// How many frames of that input wait for the reader.
    pub fn queued(&self, input: usize) -> usize {
        self.inputs[input].queue.len()
    }

    /// For a checkpoint: what each input has processed, or `None` where it has ended. Of one that was
    /// never open it has processed 0, whether or not it may still open: at the checkpoint it might have.
    pub fn positions(&self) -> Vec<Option<u64>> {
        let position = |input: &Input<T>| (input.state != State::Ended).then_some(input.processed);
        self.inputs.iter().map(position).collect()
    }

    /// Whether that input's reader has seen its end.
    pub fn has_ended(&self, input: usize) -> bool {
        self.inputs[input].state == State::Ended
    }
}
