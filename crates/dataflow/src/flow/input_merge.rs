//! Many inputs, one reader: fair, and cut by barriers at one place.
//!
//! A barrier with number n stops its input until every other input has it or has ended; only then the reader gets it, once
//! (Carbone et al., *Lightweight Asynchronous Snapshots for Distributed Dataflows*, 2015). So what was read before it is
//! exactly what all producers sent before theirs. A worker with no input left, as a source always is, takes its barriers
//! from [`InputMerge::trigger`].
//!
//! An input may be there [`InputStart::Later`]: barriers do not wait for it, but the reader does not end before it is known whether it
//! opens ([`InputMerge::open`]) or never does ([`InputMerge::never`]). Both are only said between two checkpoints ([`crate::scale_out`]).

use std::collections::{BTreeSet, VecDeque};

/// What comes on an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem<T> {
    /// A batch.
    Batch(T),
    /// The checkpoint of this number is here.
    Barrier(u64),
    /// Nothing follows.
    End,
}

/// How an input begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputStart {
    /// Behind the frame of that number; 0: at its beginning.
    After(u64),
    /// It has ended.
    Ended,
    /// It may open while the job runs.
    Undecided,
}

/// What the reader is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeStep<T> {
    /// Process this.
    Batch {
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
    Idle,
}

/// A frame that cannot come now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum StreamOrderError {
    #[error("frame {came} came where {awaited} was awaited: something was lost or came twice")]
    Sequence { awaited: u64, came: u64 },
    #[error("barrier {came} came after barrier {last}")]
    Barrier { last: u64, came: u64 },
    #[error("barriers {left} and {right} came side by side: a producer left one out")]
    Misaligned { left: u64, right: u64 },
    #[error("a frame came after the end, or before the stream was open")]
    NotOpen,
}

#[derive(Clone, Debug)]
struct MergeInput<T> {
    queue: VecDeque<StreamItem<T>>,
    /// The number of the next frame to come.
    next_sequence: u64,
    /// Of the last frame that the reader has finished with.
    processed: u64,
    last_barrier: u64,
    /// Nothing may come: it is not open yet, or the end came, which may still be in the queue.
    is_closed: bool,
    state: InputState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    /// Whether it opens is not known yet.
    Undecided,
    Open,
    /// Its barrier is here, another input's is not.
    Aligned(u64),
    /// The reader has seen the end.
    Ended,
    /// It never opens.
    Unused,
}

impl<T> MergeInput<T> {
    fn new(start: InputStart, last_barrier: u64) -> Self {
        let (state, processed) = match start {
            InputStart::After(processed) => (InputState::Open, processed),
            InputStart::Ended => (InputState::Ended, 0),
            InputStart::Undecided => (InputState::Undecided, 0),
        };
        let is_closed = state != InputState::Open;
        Self {
            queue: VecDeque::new(),
            next_sequence: processed + 1,
            processed,
            last_barrier,
            is_closed,
            state,
        }
    }
}

/// All inputs of a worker.
#[derive(Clone, Debug)]
pub struct InputMerge<T> {
    inputs: Vec<MergeInput<T>>,
    /// Which input is looked at first.
    next_input: usize,
    /// What was read last, and is processed when more is asked for.
    current_input: Option<usize>,
    /// Barriers to begin here, should there be no input left.
    pending_triggers: BTreeSet<u64>,
    last_barrier: u64,
}

impl<T> InputMerge<T> {
    /// Inputs, and the last checkpoint's number (0: none).
    pub fn new(inputs: impl IntoIterator<Item = InputStart>, last_barrier: u64) -> Self {
        let inputs = inputs
            .into_iter()
            .map(|start| MergeInput::new(start, last_barrier))
            .collect();
        Self {
            inputs,
            next_input: 0,
            current_input: None,
            pending_triggers: BTreeSet::new(),
            last_barrier,
        }
    }

    /// An input that was to open later is open: its first frame has number 1, and the next barrier is awaited on it, too.
    /// Says nothing new about any other input.
    pub fn open_input(&mut self, input: usize) {
        if self.inputs[input].state == InputState::Undecided {
            self.inputs[input] = MergeInput::new(InputStart::After(0), self.last_barrier);
        }
    }

    /// An input that was to open later never does.
    pub fn mark_unused(&mut self, input: usize) {
        if self.inputs[input].state == InputState::Undecided {
            self.inputs[input].state = InputState::Unused;
        }
    }

    /// Whether that input's fate is open.
    pub fn is_undecided(&self, input: usize) -> bool {
        self.inputs[input].state == InputState::Undecided
    }

    /// A frame came.
    ///
    /// # Errors
    /// A number or a barrier that is not the next one.
    pub fn push(
        &mut self,
        input: usize,
        sequence: u64,
        item: StreamItem<T>,
    ) -> Result<(), StreamOrderError> {
        let input = &mut self.inputs[input];
        if input.is_closed {
            return Err(StreamOrderError::NotOpen);
        }
        if sequence != input.next_sequence {
            return Err(StreamOrderError::Sequence {
                awaited: input.next_sequence,
                came: sequence,
            });
        }
        match item {
            StreamItem::Barrier(came) if came <= input.last_barrier => {
                return Err(StreamOrderError::Barrier {
                    last: input.last_barrier,
                    came,
                });
            }
            StreamItem::Barrier(came) => input.last_barrier = came,
            StreamItem::End => input.is_closed = true,
            StreamItem::Batch(_) => {}
        }
        input.next_sequence += 1;
        input.queue.push_back(item);
        Ok(())
    }

    /// A checkpoint begins. Counts only when no input is open; else it comes with the inputs' barriers.
    pub fn add_trigger(&mut self, barrier: u64) {
        if barrier > self.last_barrier {
            self.pending_triggers.insert(barrier);
        }
    }

    /// The barrier that begins here, now. Once for each.
    pub fn take_due_barrier(&mut self) -> Option<u64> {
        if !self.has_no_open_input() {
            return None;
        }
        let barrier = self.pending_triggers.pop_first()?;
        self.last_barrier = barrier;
        Some(barrier)
    }

    fn all_ended(&self) -> bool {
        self.inputs
            .iter()
            .all(|input| matches!(input.state, InputState::Ended | InputState::Unused))
    }

    /// No input can bring a barrier.
    fn has_no_open_input(&self) -> bool {
        self.inputs.iter().all(|input| {
            matches!(
                input.state,
                InputState::Ended | InputState::Undecided | InputState::Unused
            )
        })
    }

    /// What is next. What was given before counts as processed.
    ///
    /// # Errors
    /// Inputs at different barriers, which no order of correct producers brings about.
    pub fn next_step(&mut self) -> Result<MergeStep<T>, StreamOrderError> {
        self.finish_batch();
        for offset in 0..self.inputs.len() {
            let at = (self.next_input + offset) % self.inputs.len();
            if let Some(data) = self.take_batch(at) {
                (self.next_input, self.current_input) = (at + 1, Some(at));
                return Ok(MergeStep::Batch { input: at, data });
            }
        }
        self.check_alignment()
    }

    /// What was given last is processed.
    pub fn finish_batch(&mut self) {
        if let Some(at) = self.current_input.take() {
            self.inputs[at].processed += 1;
        }
    }

    /// A batch of that input; on the way, an end or a barrier is taken note of.
    fn take_batch(&mut self, at: usize) -> Option<T> {
        let input = &mut self.inputs[at];
        if input.state != InputState::Open {
            return None;
        }
        match input.queue.pop_front()? {
            StreamItem::Batch(data) => return Some(data),
            StreamItem::Barrier(barrier) => input.state = InputState::Aligned(barrier),
            StreamItem::End => {
                input.state = InputState::Ended;
                input.processed += 1;
            }
        }
        None
    }

    /// Whether a barrier is complete. Inputs before the turn were looked at in this round, too.
    fn check_alignment(&mut self) -> Result<MergeStep<T>, StreamOrderError> {
        if self.all_ended() {
            return Ok(MergeStep::Ended);
        }
        if self.has_no_open_input() {
            return Ok(self
                .take_due_barrier()
                .map_or(MergeStep::Idle, MergeStep::Barrier));
        }
        let mut common = None;
        for input in &self.inputs {
            match (input.state, common) {
                (InputState::Ended | InputState::Undecided | InputState::Unused, _) => {}
                (InputState::Aligned(left), Some(right)) if left != right => {
                    return Err(StreamOrderError::Misaligned { left, right });
                }
                (InputState::Aligned(barrier), _) => common = Some(barrier),
                (InputState::Open, _) => return Ok(MergeStep::Idle),
            }
        }
        Ok(common.map_or(MergeStep::Idle, |barrier| self.release_barrier(barrier)))
    }

    fn release_barrier(&mut self, barrier: u64) -> MergeStep<T> {
        for input in &mut self.inputs {
            if matches!(input.state, InputState::Aligned(_)) {
                input.state = InputState::Open;
                input.processed += 1;
            }
        }
        self.last_barrier = barrier;
        self.pending_triggers = self.pending_triggers.split_off(&(barrier + 1));
        MergeStep::Barrier(barrier)
    }

    /// The number up to which everything of that input is processed: what its producer is told.
    pub fn processed_sequence(&self, input: usize) -> u64 {
        self.inputs[input].processed
    }

    /// How many frames of that input wait for the reader.
    pub fn queued_frames(&self, input: usize) -> usize {
        self.inputs[input].queue.len()
    }

    /// For a checkpoint: what each input has processed, or `NoConnection` where it has ended. Of one that was
    /// never open it has processed 0, whether or not it may still open: at the checkpoint it might have.
    pub fn positions(&self) -> Vec<Option<u64>> {
        let position =
            |input: &MergeInput<T>| (input.state != InputState::Ended).then_some(input.processed);
        self.inputs.iter().map(position).collect()
    }

    /// Whether that input's reader has seen its end.
    pub fn has_ended(&self, input: usize) -> bool {
        self.inputs[input].state == InputState::Ended
    }
}
