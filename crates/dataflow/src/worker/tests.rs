//! Workers in one process, over pipes that hold little and break when told.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use bytes::Bytes;
use tokio::io::DuplexStream;

use super::{Connector, End, Failure, Input, Orders, Output, Received, SpillTo, Worker};

/// Both ends of every edge, made in advance.
#[derive(Clone, Default)]
struct Pipes(Arc<Mutex<HashMap<(String, String), DuplexStream>>>, Arc<Mutex<Vec<String>>>);

struct Pipe {
    me: String,
    pipes: Pipes,
}

impl Connector for Pipe {
    type Stream = DuplexStream;

    async fn connect(&self, end: End, peer: &str) -> io::Result<DuplexStream> {
        let (from, to) = if end == End::Producer { (&*self.me, peer) } else { (peer, &*self.me) };
        let name = (format!("{from}>{to}"), self.me.clone());
        self.pipes.0.lock().unwrap().remove(&name).ok_or(io::ErrorKind::NotFound.into())
    }

    async fn close(&self, stream: DuplexStream) -> io::Result<()> {
        self.pipes.1.lock().unwrap().push(self.me.clone());
        drop(stream);
        Ok(())
    }
}

impl Pipes {
    fn edge(&self, from: &str, to: &str) {
        let (left, right) = tokio::io::duplex(1000);
        let name = format!("{from}>{to}");
        let mut pipes = self.0.lock().unwrap();
        pipes.insert((name.clone(), from.to_owned()), left);
        pipes.insert((name, to.to_owned()), right);
    }

    fn start(&self, orders: Orders) -> Worker {
        let pipe = Pipe { me: orders.name.clone(), pipes: self.clone() };
        Worker::start(orders, || Ok(pipe)).unwrap()
    }
}

fn orders(name: &str, inputs: &[&str], outputs: &[&str]) -> Orders {
    Orders {
        name: name.to_owned(),
        attempt: 1,
        inputs: inputs
            .iter()
            .map(|from| Input { from: (*from).to_owned(), processed: Some(0), later: false })
            .collect(),
        outputs: outputs
            .iter()
            .map(|to| Output { to: (*to).to_owned(), sent: 0, spill: false, later: false })
            .collect(),
        window: 500,
        checkpoint: 0,
        spill: None,
        patience: 20.0,
    }
}

fn batch(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

/// All that comes, in order; checkpoints as `#n`.
fn read_all(worker: &Worker) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    loop {
        match worker.receive()? {
            Received::Batch { data, .. } => all.push(String::from_utf8_lossy(&data).into_owned()),
            Received::Barrier(number) => all.push(format!("#{number}")),
            Received::Ended => return Ok(all),
        }
    }
}

#[test]
fn from_end_to_end_and_both_know_when_it_is_over() {
    let pipes = Pipes::default();
    pipes.edge("a", "b");
    let (a, b) = (pipes.start(orders("a", &[], &["b"])), pipes.start(orders("b", &["a"], &[])));
    let reader = thread::spawn(move || {
        let all = read_all(&b).unwrap();
        b.finish().unwrap();
        all
    });
    let sent: Vec<String> = (0..200).map(|number| format!("batch {number}")).collect();
    for text in &sent {
        a.send(0, batch(text)).unwrap();
    }
    a.finish().unwrap();
    assert_eq!(reader.join().unwrap(), sent);
    assert_eq!(a.stats().outputs[0].batches, 200);
}

/// A consumer's process may end with its last edge: until the producer has the last acknowledgement, it must not.
#[test]
fn a_consumer_goes_once_its_producer_has_ended_the_stream() {
    for _ in 0..20 {
        let pipes = Pipes::default();
        pipes.edge("a", "b");
        let (a, b) = (pipes.start(orders("a", &[], &["b"])), pipes.start(orders("b", &["a"], &[])));
        let reader = thread::spawn(move || {
            read_all(&b).unwrap();
            b.finish().unwrap();
        });
        a.finish().unwrap();
        reader.join().unwrap();
        assert_eq!(*pipes.1.lock().unwrap(), ["a", "b"]);
    }
}

/// A job asks how long a worker has waited while it waits.
#[test]
fn a_wait_that_goes_on_is_told() {
    let pipes = Pipes::default();
    pipes.edge("a", "b");
    let (a, b) = (pipes.start(orders("a", &[], &["b"])), pipes.start(orders("b", &["a"], &[])));
    let (a, b) = (Arc::new(a), Arc::new(b));
    thread::scope(|scope| {
        let reader = scope.spawn(|| b.receive().unwrap());
        while b.stats().waited_for_input == 0.0 {
            thread::yield_now();
        }
        a.send(0, batch("at last")).unwrap();
        assert!(matches!(reader.join().unwrap(), Received::Batch { .. }));
        let writer = scope.spawn(|| (0..20).for_each(|_| a.send(0, Bytes::from(vec![7; 100])).unwrap()));
        while a.stats().waited_for_room == 0.0 {
            thread::yield_now();
        }
        assert_eq!(read_until(&b, 20), 20);
        writer.join().unwrap();
    });
}

fn read_until(worker: &Worker, count: usize) -> usize {
    (0..count).take_while(|_| matches!(worker.receive(), Ok(Received::Batch { .. }))).count()
}

#[test]
fn a_slow_reader_stops_its_writer_at_the_window() {
    let pipes = Pipes::default();
    pipes.edge("a", "b");
    let (a, b) = (pipes.start(orders("a", &[], &["b"])), pipes.start(orders("b", &["a"], &[])));
    let a = Arc::new(a);
    let writer = thread::spawn({
        let a = Arc::clone(&a);
        move || {
            (0..50).for_each(|_| a.send(0, Bytes::from(vec![7; 100])).unwrap());
            a.finish()
        }
    });
    let mut read = 0;
    while let Received::Batch { .. } = b.receive().unwrap() {
        read += 1;
        let sent = a.stats().outputs[0].batches;
        assert!(sent <= read + 6, "{sent} were sent when {read} had been read"); // 5 fill the window, 1 waits for room
    }
    assert_eq!(read, 50);
    b.finish().unwrap();
    writer.join().unwrap().unwrap();
}

#[test]
fn a_writer_that_may_spill_does_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let pipes = Pipes::default();
    pipes.edge("a", "b");
    let mut spilling = orders("a", &[], &["b"]);
    spilling.spill = Some(SpillTo { folder: folder.path().to_owned(), limit: 1 << 20 });
    spilling.outputs[0].spill = true;
    let (a, b) = (pipes.start(spilling), pipes.start(orders("b", &["a"], &[])));
    let sent: Vec<String> = (0..500).map(|number| format!("batch {number:0100}")).collect();
    for text in &sent[..250] {
        a.send(0, batch(text)).unwrap(); // nobody reads
    }
    let positions = a.barrier(1).unwrap();
    assert_eq!(positions.outputs, [251]);
    for text in &sent[250..] {
        a.send(0, batch(text)).unwrap();
    }
    assert!(a.stats().outputs[0].spilled > 40_000);
    let reader = thread::spawn(move || {
        let all = read_all(&b);
        b.finish().map(|()| all)
    });
    a.finish().unwrap();
    let mut awaited = sent;
    awaited.insert(250, "#1".to_owned());
    assert_eq!(reader.join().unwrap().unwrap().unwrap(), awaited);
}

#[test]
fn barriers_meet_where_streams_do() {
    let pipes = Pipes::default();
    pipes.edge("a", "c");
    pipes.edge("b", "c");
    let (a, b) = (pipes.start(orders("a", &[], &["c"])), pipes.start(orders("b", &[], &["c"])));
    let c = pipes.start(orders("c", &["a", "b"], &[]));
    a.send(0, batch("a1")).unwrap();
    a.barrier(1).unwrap();
    a.send(0, batch("a2")).unwrap();
    b.send(0, batch("b1")).unwrap();
    b.send(0, batch("b2")).unwrap();
    b.barrier(1).unwrap();
    let ends = [a, b].map(|worker| thread::spawn(move || worker.finish()));
    let all = read_all(&c).unwrap();
    c.finish().unwrap();
    for end in ends {
        end.join().unwrap().unwrap();
    }
    let cut = all.iter().position(|text| text == "#1").unwrap();
    let mut before = all[..cut].to_vec();
    before.sort();
    assert_eq!((before, &all[cut + 1..]), (vec!["a1".into(), "b1".into(), "b2".into()], &["a2".to_owned()][..]));
}

#[test]
fn whoever_goes_without_an_end_is_a_failure() {
    let pipes = Pipes::default();
    pipes.edge("a", "b");
    let (_, left) = tokio::io::duplex(10);
    pipes.0.lock().unwrap().insert(("a>b".to_owned(), "a".to_owned()), left);
    let b = pipes.start(orders("b", &["a"], &[]));
    let failure = b.receive().unwrap_err();
    assert!(matches!(&failure, Failure::Lost { peer, .. } if peer == "a"), "{failure}");
}

#[test]
fn why_somebody_gives_up_is_told() {
    let pipes = Pipes::default();
    pipes.edge("a", "b");
    let (a, b) = (pipes.start(orders("a", &[], &["b"])), pipes.start(orders("b", &["a"], &[])));
    a.send(0, batch("one")).unwrap();
    assert!(matches!(b.receive(), Ok(Received::Batch { .. })));
    a.fail("no such file");
    let failure = b.receive().unwrap_err();
    assert_eq!(failure, Failure::Told { peer: "a".into(), why: "no such file".into() });
}

#[test]
fn another_attempt_is_refused_on_both_sides() {
    let pipes = Pipes::default();
    pipes.edge("a", "b");
    let second = Orders { attempt: 2, ..orders("a", &[], &["b"]) };
    let (a, b) = (pipes.start(second), pipes.start(orders("b", &["a"], &[])));
    assert!(matches!(b.receive(), Err(Failure::Broken { .. } | Failure::Told { .. })));
    assert!(a.finish().is_err());
}

#[test]
fn streams_open_while_their_workers_run() {
    let pipes = Pipes::default();
    for (from, to) in [("a", "b"), ("a", "new"), ("b", "c"), ("new", "c")] {
        pipes.edge(from, to);
    }
    let mut feeds = orders("a", &[], &["b", "new"]);
    feeds.outputs[1].later = true;
    let mut reads = orders("c", &["b", "new", "never"], &[]);
    reads.inputs[1].later = true;
    reads.inputs[2].later = true;
    let (a, c) = (pipes.start(feeds), Arc::new(pipes.start(reads)));
    let hand_on = |worker: Worker| {
        thread::spawn(move || {
            loop {
                match worker.receive().unwrap() {
                    Received::Batch { data, .. } => worker.send(0, data).unwrap(),
                    Received::Barrier(number) => drop(worker.barrier(number).unwrap()),
                    Received::Ended => return worker.finish().unwrap(),
                }
            }
        })
    };
    let first = hand_on(pipes.start(orders("b", &["a"], &["c"])));
    let (take, taken) = mpsc::channel();
    let reader = thread::spawn({
        let c = Arc::clone(&c);
        move || {
            take.send(c.receive().unwrap()).unwrap();
            let all = read_all(&c).unwrap();
            c.finish().unwrap();
            all
        }
    });
    assert!(a.send(1, batch("too early")).unwrap_err().to_string().contains("`new` has not been started"));
    assert_eq!(a.open_of(&[0, 1]), [0]);
    assert_eq!(a.barrier(1).unwrap().outputs, [1, 0]);
    assert_eq!(taken.recv().unwrap(), Received::Barrier(1)); // or the next stream would open in the midst of it
    c.open_input(1);
    let second = hand_on(pipes.start(Orders { checkpoint: 1, ..orders("new", &["a"], &["c"]) }));
    a.open_output(1);
    a.send(0, batch("by b")).unwrap();
    a.send(1, batch("by new")).unwrap();
    assert_eq!(a.barrier(2).unwrap().outputs, [3, 2]);
    a.finish().unwrap();
    first.join().unwrap();
    second.join().unwrap();
    c.never(2);
    let mut all = reader.join().unwrap();
    all[..2].sort();
    assert_eq!(all, ["by b", "by new", "#2"]);
}

#[test]
fn a_reader_that_waits_for_what_may_still_come_takes_checkpoints() {
    let mut waits = orders("c", &["later"], &[]);
    waits.inputs[0].later = true;
    let c = Arc::new(Pipes::default().start(waits));
    let (took, barrier_taken) = mpsc::channel();
    let reader = thread::spawn({
        let c = Arc::clone(&c);
        move || {
            let first = c.receive().unwrap();
            let positions = c.barrier(1).unwrap();
            took.send(()).unwrap();
            (first, positions.inputs, c.receive().unwrap(), c.finish())
        }
    });
    c.trigger(1);
    barrier_taken.recv().unwrap();
    c.never(0);
    let (first, inputs, second, finished) = reader.join().unwrap();
    assert_eq!((first, inputs), (Received::Barrier(1), vec![Some(0)]));
    assert_eq!((second, finished), (Received::Ended, Ok(())));
}
