//! Workers in one process, over pipes with small buffers that can break.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use nearpath_testkit::eventually_blocking;
use tokio::io::DuplexStream;

use super::{
    DataflowWorker, EdgeConnector, EdgeEnd, InputConfig, InputEvent, OutputConfig, OutputGroup,
    SpillConfig, WorkerAssignment, WorkerFailure,
};
use crate::topology::Distribution;

/// Both ends of every edge, made in advance.
#[derive(Clone, Default)]
struct TestPipes(
    Arc<Mutex<HashMap<(String, String), DuplexStream>>>,
    Arc<Mutex<Vec<String>>>,
);

struct PipeConnector {
    name: String,
    pipes: TestPipes,
}

impl EdgeConnector for PipeConnector {
    type Stream = DuplexStream;

    async fn connect(&self, end: EdgeEnd, peer: &str) -> io::Result<DuplexStream> {
        let (from, to) = if end == EdgeEnd::Producer {
            (&*self.name, peer)
        } else {
            (peer, &*self.name)
        };
        let name = (format!("{from}>{to}"), self.name.clone());
        self.pipes
            .0
            .lock()
            .unwrap()
            .remove(&name)
            .ok_or(io::ErrorKind::NotFound.into())
    }

    async fn close(&self, stream: DuplexStream) -> io::Result<()> {
        self.pipes.1.lock().unwrap().push(self.name.clone());
        drop(stream);
        Ok(())
    }
}

impl TestPipes {
    fn add_edge(&self, from: &str, to: &str) {
        let (left, right) = tokio::io::duplex(1000);
        let name = format!("{from}>{to}");
        let mut pipes = self.0.lock().unwrap();
        pipes.insert((name.clone(), from.to_owned()), left);
        pipes.insert((name, to.to_owned()), right);
    }

    fn start_worker(&self, assignment: WorkerAssignment) -> DataflowWorker {
        let pipe = PipeConnector {
            name: assignment.name.clone(),
            pipes: self.clone(),
        };
        DataflowWorker::start(assignment, || Ok(pipe)).unwrap()
    }
}

fn assignment_for(name: &str, inputs: &[&str], outputs: &[&str]) -> WorkerAssignment {
    WorkerAssignment {
        name: name.to_owned(),
        attempt: 1,
        inputs: inputs
            .iter()
            .map(|from| InputConfig {
                from: (*from).to_owned(),
                processed: Some(0),
                pending: false,
            })
            .collect(),
        outputs: outputs
            .iter()
            .map(|to| OutputConfig {
                to: (*to).to_owned(),
                sent: 0,
                spill: false,
                pending: false,
            })
            .collect(),
        window: 500,
        checkpoint: 0,
        spill: None,
        connect_timeout: 20.0,
    }
}

fn text_batch(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

/// All events in order; checkpoints as `#n`.
fn read_all(worker: &DataflowWorker) -> Result<Vec<String>, WorkerFailure> {
    let mut all = Vec::new();
    loop {
        match worker.receive_next()? {
            InputEvent::Batch { data, .. } => all.push(String::from_utf8_lossy(&data).into_owned()),
            InputEvent::Barrier(number) => all.push(format!("#{number}")),
            InputEvent::Ended => return Ok(all),
        }
    }
}

#[test]
fn batches_arrive_in_order_and_both_ends_finish() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let (a, b) = (
        pipes.start_worker(assignment_for("a", &[], &["b"])),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    let reader = thread::spawn(move || {
        let all = read_all(&b).unwrap();
        b.finish_outputs().unwrap();
        all
    });
    let sent: Vec<String> = (0..200).map(|number| format!("batch {number}")).collect();
    for text in &sent {
        a.send_batch(0, text_batch(text)).unwrap();
    }
    a.finish_outputs().unwrap();
    assert_eq!(reader.join().unwrap(), sent);
    assert_eq!(a.stats().outputs[0].batches, 200);
}

/// A consumer's process may end with its last edge, but not before the producer has the last
/// acknowledgement.
#[test]
fn a_consumer_closes_after_its_producer_has_ended_the_stream() {
    for _ in 0..20 {
        let pipes = TestPipes::default();
        pipes.add_edge("a", "b");
        let (a, b) = (
            pipes.start_worker(assignment_for("a", &[], &["b"])),
            pipes.start_worker(assignment_for("b", &["a"], &[])),
        );
        let reader = thread::spawn(move || {
            read_all(&b).unwrap();
            b.finish_outputs().unwrap();
        });
        a.finish_outputs().unwrap();
        reader.join().unwrap();
        assert_eq!(*pipes.1.lock().unwrap(), ["a", "b"]);
    }
}

/// A job reads the waiting time of a worker while it waits.
#[test]
fn an_ongoing_wait_is_part_of_the_stats() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let (a, b) = (
        pipes.start_worker(assignment_for("a", &[], &["b"])),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    let (a, b) = (Arc::new(a), Arc::new(b));
    thread::scope(|scope| {
        let reader = scope.spawn(|| b.receive_next().unwrap());
        eventually_blocking("b waits for input", || b.stats().waited_for_input > 0.0);
        a.send_batch(0, text_batch("at last")).unwrap();
        assert!(matches!(reader.join().unwrap(), InputEvent::Batch { .. }));
        let writer = scope
            .spawn(|| (0..20).for_each(|_| a.send_batch(0, Bytes::from(vec![7; 100])).unwrap()));
        eventually_blocking("a waits for room", || a.stats().waited_for_room > 0.0);
        assert_eq!(count_batches(&b, 20), 20);
        writer.join().unwrap();
    });
}

fn count_batches(worker: &DataflowWorker, count: usize) -> usize {
    (0..count)
        .take_while(|_| matches!(worker.receive_next(), Ok(InputEvent::Batch { .. })))
        .count()
}

#[test]
fn a_slow_consumer_stops_its_producer_at_the_window() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let (a, b) = (
        pipes.start_worker(assignment_for("a", &[], &["b"])),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    let a = Arc::new(a);
    let writer = thread::spawn({
        let a = Arc::clone(&a);
        move || {
            (0..50).for_each(|_| a.send_batch(0, Bytes::from(vec![7; 100])).unwrap());
            a.finish_outputs()
        }
    });
    let mut read = 0;
    while let InputEvent::Batch { .. } = b.receive_next().unwrap() {
        read += 1;
        let sent = a.stats().outputs[0].batches;
        assert!(
            sent <= read + 6,
            "{sent} were sent when {read} had been read"
        ); // 5 fill the window, 1 waits for room
    }
    assert_eq!(read, 50);
    b.finish_outputs().unwrap();
    writer.join().unwrap().unwrap();
}

#[test]
fn a_producer_that_spills_does_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let mut spilling = assignment_for("a", &[], &["b"]);
    spilling.spill = Some(SpillConfig {
        folder: folder.path().to_owned(),
        limit: 1 << 20,
    });
    spilling.outputs[0].spill = true;
    let (a, b) = (
        pipes.start_worker(spilling),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    let batches: Vec<String> = (0..500)
        .map(|number| format!("batch {number:0100}"))
        .collect();
    for text in &batches[..250] {
        a.send_batch(0, text_batch(text)).unwrap(); // no reader
    }
    let positions = a.send_barrier(1).unwrap();
    assert_eq!(positions.outputs, [251]);
    for text in &batches[250..] {
        a.send_batch(0, text_batch(text)).unwrap();
    }
    assert!(a.stats().outputs[0].spilled > 40_000);
    let reader = thread::spawn(move || {
        let all = read_all(&b);
        b.finish_outputs().map(|()| all)
    });
    a.finish_outputs().unwrap();
    let mut awaited = batches;
    awaited.insert(250, "#1".to_owned());
    assert_eq!(reader.join().unwrap().unwrap().unwrap(), awaited);
}

#[test]
fn a_barrier_separates_the_batches_of_all_inputs() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "c");
    pipes.add_edge("b", "c");
    let (a, b) = (
        pipes.start_worker(assignment_for("a", &[], &["c"])),
        pipes.start_worker(assignment_for("b", &[], &["c"])),
    );
    let c = pipes.start_worker(assignment_for("c", &["a", "b"], &[]));
    a.send_batch(0, text_batch("a1")).unwrap();
    a.send_barrier(1).unwrap();
    a.send_batch(0, text_batch("a2")).unwrap();
    b.send_batch(0, text_batch("b1")).unwrap();
    b.send_batch(0, text_batch("b2")).unwrap();
    b.send_barrier(1).unwrap();
    let ends = [a, b].map(|worker| thread::spawn(move || worker.finish_outputs()));
    let all = read_all(&c).unwrap();
    c.finish_outputs().unwrap();
    for end in ends {
        end.join().unwrap().unwrap();
    }
    let cut = all.iter().position(|text| text == "#1").unwrap();
    let mut before = all[..cut].to_vec();
    before.sort();
    assert_eq!(
        (before, &all[cut + 1..]),
        (
            vec!["a1".into(), "b1".into(), "b2".into()],
            &["a2".to_owned()][..]
        )
    );
}

#[test]
fn a_stream_that_closes_without_an_end_is_a_failure() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let (_, left) = tokio::io::duplex(10);
    pipes
        .0
        .lock()
        .unwrap()
        .insert(("a>b".to_owned(), "a".to_owned()), left);
    let b = pipes.start_worker(assignment_for("b", &["a"], &[]));
    let failure = b.receive_next().unwrap_err();
    assert!(
        matches!(&failure, WorkerFailure::StreamLost { peer, .. } if peer == "a"),
        "{failure}"
    );
}

#[test]
fn the_reason_of_a_failure_reaches_the_peer() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let (a, b) = (
        pipes.start_worker(assignment_for("a", &[], &["b"])),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    a.send_batch(0, text_batch("one")).unwrap();
    assert!(matches!(b.receive_next(), Ok(InputEvent::Batch { .. })));
    a.fail_with_reason("no such file");
    let failure = b.receive_next().unwrap_err();
    assert_eq!(
        failure,
        WorkerFailure::PeerFailed {
            peer: "a".into(),
            why: "no such file".into()
        }
    );
}

#[test]
fn workers_of_different_attempts_refuse_each_other() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let second = WorkerAssignment {
        attempt: 2,
        ..assignment_for("a", &[], &["b"])
    };
    let (a, b) = (
        pipes.start_worker(second),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    assert!(matches!(
        b.receive_next(),
        Err(WorkerFailure::ProtocolViolation { .. } | WorkerFailure::PeerFailed { .. })
    ));
    assert!(a.finish_outputs().is_err());
}

#[test]
fn streams_open_while_their_workers_run() {
    let pipes = TestPipes::default();
    for (from, to) in [("a", "b"), ("a", "new"), ("b", "c"), ("new", "c")] {
        pipes.add_edge(from, to);
    }
    let mut producer = assignment_for("a", &[], &["b", "new"]);
    producer.outputs[1].pending = true;
    let mut consumer = assignment_for("c", &["b", "new", "never"], &[]);
    consumer.inputs[1].pending = true;
    consumer.inputs[2].pending = true;
    let (a, c) = (
        pipes.start_worker(producer),
        Arc::new(pipes.start_worker(consumer)),
    );
    let spawn_forwarder = |worker: DataflowWorker| {
        thread::spawn(move || {
            loop {
                match worker.receive_next().unwrap() {
                    InputEvent::Batch { data, .. } => worker.send_batch(0, data).unwrap(),
                    InputEvent::Barrier(number) => drop(worker.send_barrier(number).unwrap()),
                    InputEvent::Ended => return worker.finish_outputs().unwrap(),
                }
            }
        })
    };
    let first_forwarder = spawn_forwarder(pipes.start_worker(assignment_for("b", &["a"], &["c"])));
    let (event_sender, event_receiver) = mpsc::channel();
    let reader = thread::spawn({
        let c = Arc::clone(&c);
        move || {
            event_sender.send(c.receive_next().unwrap()).unwrap();
            let all = read_all(&c).unwrap();
            c.finish_outputs().unwrap();
            all
        }
    });
    assert!(
        a.send_batch(1, text_batch("too early"))
            .unwrap_err()
            .to_string()
            .contains("`new` has not been started")
    );
    assert_eq!(a.filter_open_outputs(&[0, 1]), [0]);
    assert_eq!(a.send_barrier(1).unwrap().outputs, [1, 0]);
    // Else the next stream would open in the middle of the checkpoint.
    assert_eq!(event_receiver.recv().unwrap(), InputEvent::Barrier(1));
    c.open_input(1);
    let second_forwarder = spawn_forwarder(pipes.start_worker(WorkerAssignment {
        checkpoint: 1,
        ..assignment_for("new", &["a"], &["c"])
    }));
    a.open_output(1);
    a.send_batch(0, text_batch("by b")).unwrap();
    a.send_batch(1, text_batch("by new")).unwrap();
    assert_eq!(a.send_barrier(2).unwrap().outputs, [3, 2]);
    a.finish_outputs().unwrap();
    first_forwarder.join().unwrap();
    second_forwarder.join().unwrap();
    c.mark_input_unused(2);
    let mut all = reader.join().unwrap();
    all[..2].sort();
    assert_eq!(all, ["by b", "by new", "#2"]);
}

#[test]
fn a_worker_with_undecided_inputs_takes_checkpoints() {
    let mut assignment = assignment_for("c", &["later"], &[]);
    assignment.inputs[0].pending = true;
    let c = Arc::new(TestPipes::default().start_worker(assignment));
    let (barrier_sender, barrier_taken) = mpsc::channel();
    let reader = thread::spawn({
        let c = Arc::clone(&c);
        move || {
            let first = c.receive_next().unwrap();
            let positions = c.send_barrier(1).unwrap();
            barrier_sender.send(()).unwrap();
            (
                first,
                positions.inputs,
                c.receive_next().unwrap(),
                c.finish_outputs(),
            )
        }
    });
    c.trigger_checkpoint(1);
    barrier_taken.recv().unwrap();
    c.mark_input_unused(0);
    let (first, inputs, second, finished) = reader.join().unwrap();
    assert_eq!((first, inputs), (InputEvent::Barrier(1), vec![Some(0)]));
    assert_eq!((second, finished), (InputEvent::Ended, Ok(())));
}

fn gather_group(linger: Option<Duration>) -> Vec<OutputGroup> {
    vec![OutputGroup {
        distribution: Distribution::Gather,
        outputs: vec![0],
        linger,
    }]
}

#[test]
fn an_item_of_a_slow_producer_arrives_without_a_full_batch() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let (a, b) = (
        pipes.start_worker(assignment_for("a", &[], &["b"])),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    let (items, received) = mpsc::channel();
    let reader = thread::spawn(move || {
        while let InputEvent::Batch { data, .. } = b.receive_next().unwrap() {
            items.send(data).unwrap();
        }
        b.finish_outputs().unwrap();
    });
    let linger = Some(Duration::from_millis(20));
    let batches = a.batch_items(gather_group(linger), 1000).unwrap();
    // Each follows the arrival of the one before, so the timer starts from idle each time.
    for item in ["one", "two", "three"] {
        assert!(!batches.append(0, 0, &mut item.as_bytes().to_vec()));
        assert_eq!(
            received.recv_timeout(Duration::from_secs(20)).unwrap(),
            item
        );
    }
    a.finish_outputs().unwrap();
    reader.join().unwrap();
}

#[test]
fn batches_keep_their_order_when_the_timer_and_the_producer_send_them() {
    let pipes = TestPipes::default();
    pipes.add_edge("a", "b");
    let (a, b) = (
        pipes.start_worker(assignment_for("a", &[], &["b"])),
        pipes.start_worker(assignment_for("b", &["a"], &[])),
    );
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        loop {
            match b.receive_next().unwrap() {
                InputEvent::Batch { data, .. } => all.extend_from_slice(&data),
                InputEvent::Barrier(number) => all.push(u8::try_from(number).unwrap()),
                InputEvent::Ended => break,
            }
        }
        b.finish_outputs().unwrap();
        all
    });
    let linger = Some(Duration::from_micros(50));
    let batches = a.batch_items(gather_group(linger), 40).unwrap();
    let mut expected = Vec::new();
    for number in 0..20_000_u32 {
        // Neither is a barrier's number, which is at most 20.
        let item = [100 + (number % 100) as u8, 200 + (number / 100 % 50) as u8];
        expected.extend_from_slice(&item);
        if batches.append(0, 0, &mut item.to_vec()) {
            batches.send(0, 0).unwrap();
        }
        if number % 1000 == 999 {
            batches.flush().unwrap();
            let barrier = u64::from(number / 1000 + 1);
            a.send_barrier(barrier).unwrap();
            expected.push(u8::try_from(barrier).unwrap());
        }
    }
    batches.flush().unwrap();
    a.finish_outputs().unwrap();
    assert!(reader.join().unwrap() == expected);
}
