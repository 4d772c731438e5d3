//! Merge of all inputs of a worker: fair, and cut by barriers at one point.
//!
//! A barrier with number n stops its input until every other input has reached it or has ended.
//! Only then the reader gets it, once (Carbone et al., *Lightweight Asynchronous Snapshots for
//! Distributed Dataflows*, 2015). So everything read before it is exactly what all producers sent
//! before their barrier n. A worker without open inputs, such as a source, takes its barriers from
//! [`InputMerge::add_trigger`].
//!
//! An input may start as [`InputStart::Undecided`]. Barriers do not wait for it, but the reader
//! does not end before it opens ([`InputMerge::open_input`]) or is declared unused
//! ([`InputMerge::mark_unused`]). Both happen only between two checkpoints ([`crate::scale_out`]).

use std::collections::{BTreeSet, VecDeque};

/// Item that arrives on an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem<T> {
    /// A batch.
    Batch(T),
    /// Barrier of the checkpoint with this number.
    Barrier(u64),
    /// Last item.
    End,
}

/// Initial state of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputStart {
    /// Open, behind the frame of that number; 0: at the beginning.
    After(u64),
    /// The stream has ended.
    Ended,
    /// May open while the job runs.
    Undecided,
}

/// Next step of the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeStep<T> {
    /// Process a batch.
    Batch {
        /// Index of the input.
        input: usize,
        /// The batch.
        data: T,
    },
    /// Save the state, then forward the barrier.
    Barrier(u64),
    /// All inputs have ended.
    Ended,
    /// No item is available.
    Idle,
}

/// A frame that violates the order of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum StreamOrderError {
    #[error("frame {received} received instead of {expected}: a frame was lost or duplicated")]
    Sequence { expected: u64, received: u64 },
    #[error("barrier {received} received after barrier {last}")]
    Barrier { last: u64, received: u64 },
    #[error("inputs are at the different barriers {left} and {right}: a producer skipped one")]
    Misaligned { left: u64, right: u64 },
    #[error("frame received after the end, or before the stream was open")]
    NotOpen,
}

#[derive(Clone, Debug)]
struct MergeInput<T> {
    queue: VecDeque<StreamItem<T>>,
    /// Number of the next expected frame.
    next_sequence: u64,
    /// Number of the last frame that the reader has processed.
    processed: u64,
    last_barrier: u64,
    /// No frame may arrive: the input is not open yet, or its end has arrived and may still be
    /// queued.
    is_closed: bool,
    state: InputState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    /// May open later.
    Undecided,
    Open,
    /// Stopped at this barrier, which another input has not reached.
    Aligned(u64),
    /// The reader has seen the end.
    Ended,
    /// Never opens.
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
    /// Index of the input that is tried first.
    next_input: usize,
    /// Input of the batch that the reader is processing.
    current_input: Option<usize>,
    /// Checkpoints to start here when no input is open.
    pending_triggers: BTreeSet<u64>,
    last_barrier: u64,
}

impl<T> InputMerge<T> {
    /// Merges inputs that start as given. `last_barrier` is the number of the last checkpoint, 0
    /// for none.
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

    /// Opens an undecided input: its first frame has number 1, and the next barrier waits for it.
    /// No effect on other inputs.
    pub fn open_input(&mut self, input: usize) {
        if self.inputs[input].state == InputState::Undecided {
            self.inputs[input] = MergeInput::new(InputStart::After(0), self.last_barrier);
        }
    }

    /// Declares that an undecided input never opens. No effect on other inputs.
    pub fn mark_unused(&mut self, input: usize) {
        if self.inputs[input].state == InputState::Undecided {
            self.inputs[input].state = InputState::Unused;
        }
    }

    /// True while the input may still open or stay unused.
    pub fn is_undecided(&self, input: usize) -> bool {
        self.inputs[input].state == InputState::Undecided
    }

    /// Queues a frame.
    ///
    /// # Errors
    /// When the sequence number or the barrier is not the expected one.
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
                expected: input.next_sequence,
                received: sequence,
            });
        }
        match item {
            StreamItem::Barrier(received) if received <= input.last_barrier => {
                return Err(StreamOrderError::Barrier {
                    last: input.last_barrier,
                    received,
                });
            }
            StreamItem::Barrier(received) => input.last_barrier = received,
            // Separate from `state`, which changes only when the reader reaches the end in the
            // queue.
            StreamItem::End => input.is_closed = true,
            StreamItem::Batch(_) => {}
        }
        input.next_sequence += 1;
        input.queue.push_back(item);
        Ok(())
    }

    /// Announces a checkpoint. Takes effect only while no input is open; else it arrives with the
    /// barriers of the inputs.
    pub fn add_trigger(&mut self, barrier: u64) {
        if barrier > self.last_barrier {
            self.pending_triggers.insert(barrier);
        }
    }

    /// Returns the barrier that starts here now. Each barrier is returned once.
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

    /// True when no input can bring a barrier.
    fn has_no_open_input(&self) -> bool {
        self.inputs.iter().all(|input| {
            matches!(
                input.state,
                InputState::Ended | InputState::Undecided | InputState::Unused
            )
        })
    }

    /// Returns the next step. The batch of the previous step counts as processed.
    ///
    /// # Errors
    /// When inputs are at different barriers, which correct producers never cause.
    pub fn next_step(&mut self) -> Result<MergeStep<T>, StreamOrderError> {
        self.finish_batch();
        // Round robin by batch: a fast producer must not starve the others, whose barriers would
        // then never align.
        for offset in 0..self.inputs.len() {
            let at = (self.next_input + offset) % self.inputs.len();
            if let Some(data) = self.take_batch(at) {
                (self.next_input, self.current_input) = (at + 1, Some(at));
                return Ok(MergeStep::Batch { input: at, data });
            }
        }
        self.check_alignment()
    }

    /// Counts the last returned batch as processed.
    pub fn finish_batch(&mut self) {
        if let Some(at) = self.current_input.take() {
            self.inputs[at].processed += 1;
        }
    }

    /// Takes a batch of an open input; an end or a barrier in front changes the state of the input
    /// instead.
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

    /// Checks whether a barrier is complete. Inputs before `next_input` were tried in this round
    /// too.
    fn check_alignment(&mut self) -> Result<MergeStep<T>, StreamOrderError> {
        if self.all_ended() {
            return Ok(MergeStep::Ended);
        }
        // Nothing can bring a barrier any more, so a triggered checkpoint starts here: else long
        // final phases could not be cut.
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
                // Still on its way to the barrier: stopped inputs wait for it.
                (InputState::Open, _) => return Ok(MergeStep::Idle),
            }
        }
        Ok(common.map_or(MergeStep::Idle, |barrier| self.release_barrier(barrier)))
    }

    /// Reopens the inputs that were stopped at the barrier.
    fn release_barrier(&mut self, barrier: u64) -> MergeStep<T> {
        for input in &mut self.inputs {
            if matches!(input.state, InputState::Aligned(_)) {
                input.state = InputState::Open;
                input.processed += 1;
            }
        }
        self.last_barrier = barrier;
        // Older triggers came with the inputs' barriers; starting one of them later would run
        // numbers backwards.
        self.pending_triggers = self.pending_triggers.split_off(&(barrier + 1));
        MergeStep::Barrier(barrier)
    }

    /// Number of the last processed frame of an input, as acknowledged to its producer.
    pub fn processed_sequence(&self, input: usize) -> u64 {
        self.inputs[input].processed
    }

    /// Number of queued frames of an input.
    pub fn queued_frames(&self, input: usize) -> usize {
        self.inputs[input].queue.len()
    }

    /// Positions for a checkpoint: the last processed frame of each input, `None` when it has
    /// ended. An input that never opened has position 0, even when it is unused: at the checkpoint
    /// it might still have opened.
    pub fn positions(&self) -> Vec<Option<u64>> {
        let position =
            |input: &MergeInput<T>| (input.state != InputState::Ended).then_some(input.processed);
        self.inputs.iter().map(position).collect()
    }

    /// True when the reader has seen the end of the input.
    pub fn has_ended(&self, input: usize) -> bool {
        self.inputs[input].state == InputState::Ended
    }
}
