//! Laws of the two ends.

use proptest::prelude::*;

use super::{Merge, Next, NotSent, OutOfOrder, Outgoing, Piece, Start};

/// What an input sends: how many batches before each barrier, and how many barriers before its end.
#[derive(Clone, Debug)]
struct Script {
    counts: Vec<usize>,
}

impl Script {
    fn pieces(&self, input: usize) -> Vec<Piece<(usize, usize, usize)>> {
        let mut pieces = Vec::new();
        for (epoch, &count) in self.counts.iter().enumerate() {
            pieces.extend((0..count).map(|at| Piece::Data((input, epoch, at))));
            let last = epoch + 1 == self.counts.len();
            pieces.push(if last { Piece::End } else { Piece::Barrier(epoch as u64 + 1) });
        }
        pieces
    }
}

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    prop::collection::vec(prop::collection::vec(0..4_usize, 1..5).prop_map(|counts| Script { counts }), 1..5)
}

proptest! {
    /// However frames come in: nothing is lost or comes twice, the order of an input stays, and what is read before barrier n is
    /// what every input sent before its barrier n.
    #[test]
    fn barriers_cut_all_inputs_at_one_place(scripts in scripts(), order in prop::collection::vec(any::<(bool, u8)>(), 0..200)) {
        let mut coming: Vec<_> = scripts.iter().enumerate().map(|(at, script)| script.pieces(at).into_iter().enumerate()).collect();
        let mut merge = Merge::new(scripts.iter().map(|_| Start::After(0)), 0);
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
            match merge.step().unwrap() {
                Next::Data { input, data } => {
                    prop_assert!(data.1 >= barriers, "read after barrier {}: {:?}", barriers, data);
                    read[input].push(data);
                }
                Next::Barrier(barrier) => {
                    barriers += 1;
                    prop_assert_eq!(barrier, barriers as u64);
                    for (at, script) in scripts.iter().enumerate() {
                        prop_assert_eq!(read[at].len(), script.counts.iter().take(barriers).sum::<usize>());
                    }
                }
                Next::Ended | Next::Wait => {}
            }
        }
        prop_assert_eq!(merge.step().unwrap(), Next::Ended);
        prop_assert_eq!(barriers, scripts.iter().map(|script| script.counts.len() - 1).max().unwrap());
        for (at, script) in scripts.iter().enumerate() {
            let sent: Vec<_> = script.pieces(at).into_iter().filter_map(|piece| match piece { Piece::Data(data) => Some(data), _ => None }).collect();
            prop_assert_eq!(&read[at], &sent);
        }
    }

    /// Never more than the window on its way, but for one batch that is larger than it; all that is acknowledged is free.
    #[test]
    fn window_holds(window in 1..100_usize, sizes in prop::collection::vec(0..150_usize, 1..60), acks in prop::collection::vec(any::<bool>(), 60)) {
        let mut edge = Outgoing::new(1, window);
        let (mut unacked, mut acked) = (Vec::new(), 0);
        for (size, acks) in sizes.iter().zip(acks) {
            while !edge.admits(*size) || (acks && !unacked.is_empty()) {
                let (sequence, bytes) = unacked.remove(0);
                prop_assert_eq!(edge.acknowledge(sequence), Ok(bytes));
                acked = sequence;
            }
            unacked.push((edge.send(*size), *size));
            let largest = unacked.iter().map(|frame| frame.1).max().unwrap_or(0);
            prop_assert!(edge.bytes() <= window.max(largest), "{} of {window}", edge.bytes());
        }
        prop_assert_eq!(edge.acknowledge(acked), Err(NotSent(acked)));
        prop_assert_eq!(edge.next(), sizes.len() as u64 + 1);
        edge.acknowledge(edge.next() - 1).unwrap_or_default();
        prop_assert!(edge.is_idle() && edge.bytes() == 0);
    }
}

#[test]
fn inputs_take_turns() {
    let mut merge = Merge::new([Start::After(0); 3], 0);
    for input in 0..3 {
        for number in 1..=4 {
            merge.push(input, number, Piece::Data(())).unwrap();
        }
    }
    let turns = std::iter::from_fn(|| match merge.step().unwrap() {
        Next::Data { input, .. } => Some(input),
        _ => None,
    });
    assert_eq!(turns.collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn what_is_being_read_is_not_processed() {
    let mut merge = Merge::new([Start::After(0)], 0);
    merge.push(0, 1, Piece::Data(())).unwrap();
    assert_eq!(merge.step().unwrap(), Next::Data { input: 0, data: () });
    assert_eq!(merge.processed(0), 0);
    assert_eq!(merge.step().unwrap(), Next::Wait);
    assert_eq!(merge.processed(0), 1);
}

#[test]
fn gaps_and_doubles_are_refused() {
    let mut merge = Merge::new([Start::After(4)], 2);
    let refused = |awaited, came| Err(OutOfOrder::Sequence { awaited, came });
    assert_eq!(merge.push(0, 4, Piece::Data(())), refused(5, 4));
    assert_eq!(merge.push(0, 6, Piece::Data(())), refused(5, 6));
    assert_eq!(merge.push(0, 5, Piece::Barrier(2)), Err(OutOfOrder::Barrier { last: 2, came: 2 }));
    assert_eq!(merge.push(0, 5, Piece::End), Ok(()));
    assert_eq!(merge.push(0, 6, Piece::Data(())), Err(OutOfOrder::Ended));
}

#[test]
fn a_source_begins_barriers_by_itself() {
    let mut merge = Merge::<()>::new([], 3);
    assert_eq!(merge.due(), None);
    merge.trigger(3);
    assert_eq!(merge.due(), None, "that one is behind it");
    merge.trigger(4);
    assert_eq!((merge.due(), merge.due()), (Some(4), None));
}

#[test]
fn a_trigger_waits_for_the_inputs_and_counts_when_they_end_without_it() {
    let mut merge = Merge::<()>::new([Start::After(0); 2], 0);
    merge.trigger(1);
    merge.trigger(2);
    assert_eq!(merge.due(), None);
    merge.push(0, 1, Piece::Barrier(1)).unwrap();
    merge.push(1, 1, Piece::End).unwrap();
    assert_eq!(merge.step().unwrap(), Next::Barrier(1));
    merge.push(0, 2, Piece::End).unwrap();
    assert_eq!(merge.step().unwrap(), Next::Ended);
    assert_eq!((merge.due(), merge.due()), (Some(2), None));
}
