//! Properties of the send window and of the input merge.

use proptest::prelude::*;

use super::{
    InputMerge, InputStart, MergeStep, SendWindow, StreamItem, StreamOrderError, UnexpectedAck,
};

/// Items of one input: the number of batches before each barrier, and before the end.
#[derive(Clone, Debug)]
struct InputScript {
    counts: Vec<usize>,
}

impl InputScript {
    fn stream_items(&self, input: usize) -> Vec<StreamItem<(usize, usize, usize)>> {
        let mut pieces = Vec::new();
        for (epoch, &count) in self.counts.iter().enumerate() {
            pieces.extend((0..count).map(|at| StreamItem::Batch((input, epoch, at))));
            let last = epoch + 1 == self.counts.len();
            pieces.push(if last {
                StreamItem::End
            } else {
                StreamItem::Barrier(epoch as u64 + 1)
            });
        }
        pieces
    }
}

fn any_scripts() -> impl Strategy<Value = Vec<InputScript>> {
    prop::collection::vec(
        prop::collection::vec(0..4_usize, 1..5).prop_map(|counts| InputScript { counts }),
        1..5,
    )
}

proptest! {
    /// In any order of frames, no item is lost or duplicated and the order of each input is kept.
    /// The items read before barrier n are those that every input sent before its barrier n.
    #[test]
    fn barriers_cut_all_inputs_at_one_place(scripts in any_scripts(), order in prop::collection::vec(any::<(bool, u8)>(), 0..200)) {
        let mut coming: Vec<_> = scripts.iter().enumerate().map(|(at, script)| script.stream_items(at).into_iter().enumerate()).collect();
        let mut merge = InputMerge::new(scripts.iter().map(|_| InputStart::After(0)), 0);
        let mut read = vec![Vec::new(); scripts.len()];
        let mut barriers = 0;
        let all = (0..100).flat_map(|_| (0..scripts.len()).flat_map(|at| [(true, at as u8), (false, 0)]));
        for (pushes, pick) in order.into_iter().chain(all) {
            if pushes {
                let at = usize::from(pick) % scripts.len();
                if let Some((number, piece)) = coming[at].next() {
                    merge.push(at, number as u64 + 1, piece).unwrap();
                }
                continue;
            }
            match merge.next_step().unwrap() {
                MergeStep::Batch { input, data } => {
                    prop_assert!(data.1 >= barriers, "read after barrier {}: {:?}", barriers, data);
                    read[input].push(data);
                }
                MergeStep::Barrier(barrier) => {
                    barriers += 1;
                    prop_assert_eq!(barrier, barriers as u64);
                    for (at, script) in scripts.iter().enumerate() {
                        prop_assert_eq!(read[at].len(), script.counts.iter().take(barriers).sum::<usize>());
                    }
                }
                MergeStep::Ended | MergeStep::Idle => {}
            }
        }
        prop_assert_eq!(merge.next_step().unwrap(), MergeStep::Ended);
        prop_assert_eq!(barriers, scripts.iter().map(|script| script.counts.len() - 1).max().unwrap());
        for (at, script) in scripts.iter().enumerate() {
            let sent: Vec<_> = script.stream_items(at).into_iter().filter_map(|piece| match piece { StreamItem::Batch(data) => Some(data), _ => None }).collect();
            prop_assert_eq!(&read[at], &sent);
        }
    }

    /// At most the window is in flight, except for one batch larger than it. Everything
    /// acknowledged is free again.
    #[test]
    fn window_holds(window in 1..100_usize, sizes in prop::collection::vec(0..150_usize, 1..60), acks in prop::collection::vec(any::<bool>(), 60)) {
        let mut edge = SendWindow::new(1, window);
        let (mut unacked, mut acked) = (Vec::new(), 0);
        for (size, acks) in sizes.iter().zip(acks) {
            while !edge.has_room_for(*size) || (acks && !unacked.is_empty()) {
                let (sequence, bytes) = unacked.remove(0);
                prop_assert_eq!(edge.acknowledge(sequence), Ok(bytes));
                acked = sequence;
            }
            unacked.push((edge.record_send(*size), *size));
            let largest = unacked.iter().map(|frame| frame.1).max().unwrap_or(0);
            prop_assert!(edge.unacked_bytes() <= window.max(largest), "{} of {window}", edge.unacked_bytes());
        }
        prop_assert_eq!(edge.acknowledge(acked), Err(UnexpectedAck(acked)));
        prop_assert_eq!(edge.next_sequence(), sizes.len() as u64 + 1);
        edge.acknowledge(edge.next_sequence() - 1).unwrap_or_default();
        prop_assert!(edge.is_idle() && edge.unacked_bytes() == 0);
    }
}

#[test]
fn inputs_are_read_round_robin() {
    let mut merge = InputMerge::new([InputStart::After(0); 3], 0);
    for input in 0..3 {
        for number in 1..=4 {
            merge.push(input, number, StreamItem::Batch(())).unwrap();
        }
    }
    let reads = std::iter::from_fn(|| match merge.next_step().unwrap() {
        MergeStep::Batch { input, .. } => Some(input),
        _ => None,
    });
    assert_eq!(
        reads.collect::<Vec<_>>(),
        [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    );
}

#[test]
fn a_batch_counts_as_processed_at_the_next_step() {
    let mut merge = InputMerge::new([InputStart::After(0)], 0);
    merge.push(0, 1, StreamItem::Batch(())).unwrap();
    assert_eq!(
        merge.next_step().unwrap(),
        MergeStep::Batch { input: 0, data: () }
    );
    assert_eq!(merge.processed_sequence(0), 0);
    assert_eq!(merge.next_step().unwrap(), MergeStep::Idle);
    assert_eq!(merge.processed_sequence(0), 1);
}

#[test]
fn gaps_and_duplicates_are_refused() {
    let mut merge = InputMerge::new([InputStart::After(4)], 2);
    let refused = |expected, received| Err(StreamOrderError::Sequence { expected, received });
    assert_eq!(merge.push(0, 4, StreamItem::Batch(())), refused(5, 4));
    assert_eq!(merge.push(0, 6, StreamItem::Batch(())), refused(5, 6));
    assert_eq!(
        merge.push(0, 5, StreamItem::Barrier(2)),
        Err(StreamOrderError::Barrier {
            last: 2,
            received: 2
        })
    );
    assert_eq!(merge.push(0, 5, StreamItem::End), Ok(()));
    assert_eq!(
        merge.push(0, 6, StreamItem::Batch(())),
        Err(StreamOrderError::NotOpen)
    );
}

#[test]
fn a_worker_without_inputs_starts_barriers_from_triggers() {
    let mut merge = InputMerge::<()>::new([], 3);
    assert_eq!(merge.take_due_barrier(), None);
    merge.add_trigger(3);
    assert_eq!(merge.take_due_barrier(), None, "that one is behind it");
    merge.add_trigger(4);
    assert_eq!(
        (merge.take_due_barrier(), merge.take_due_barrier()),
        (Some(4), None)
    );
}

#[test]
fn a_trigger_takes_effect_once_all_inputs_have_ended() {
    let mut merge = InputMerge::<()>::new([InputStart::After(0); 2], 0);
    merge.add_trigger(1);
    merge.add_trigger(2);
    assert_eq!(merge.take_due_barrier(), None);
    merge.push(0, 1, StreamItem::Barrier(1)).unwrap();
    merge.push(1, 1, StreamItem::End).unwrap();
    assert_eq!(merge.next_step().unwrap(), MergeStep::Barrier(1));
    merge.push(0, 2, StreamItem::End).unwrap();
    assert_eq!(merge.next_step().unwrap(), MergeStep::Ended);
    assert_eq!(
        (merge.take_due_barrier(), merge.take_due_barrier()),
        (Some(2), None)
    );
}
