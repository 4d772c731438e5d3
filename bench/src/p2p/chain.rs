//! A chain of workers of a job, each on a machine of its own behind a NAT of its own: the first one sends, the others forward, and the last one gets it
//! all. Streams are those of any job ([`nearpath_dataflow::worker`]) over links that met ([`nearpath_dataflow::remote::connector`]).

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_dataflow::remote::connection::RendezvousConnection;
use nearpath_dataflow::remote::connector::RemoteConnector;
use nearpath_dataflow::remote::worker_name;
use nearpath_dataflow::worker::{
    DataflowWorker, InputConfig, InputEvent, OutputConfig, WorkerAssignment,
};
use nearpath_testkit::lab::nat::{IpFamily, NatSite};

use super::town::{Lines, Town};
use crate::remote::Error;

/// What a worker of a job has by default: bytes on their way on one edge, and how long peers may take to come.
const WINDOW: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
/// What is sent at a time, as the SDK does it.
pub(crate) const BATCH: usize = 256 << 10;
/// The link must have moved everywhere within this.
const SETTLES: Duration = Duration::from_secs(60);

/// See the module. It ends when it is dropped.
pub(crate) struct Chain {
    /// Front to back; a line belongs to each.
    workers: Vec<Arc<DataflowWorker>>,
    forwarding: Vec<JoinHandle<()>>,
    _lines: Vec<RendezvousConnection>,
    /// From the moment at which all lines were there until the last worker had the first batch.
    pub(crate) first: Duration,
}

impl Chain {
    /// A worker in each of these sites, called `stage.N`. Returns when the first batch has gone through.
    pub(crate) fn start(town: &Town, stage: &str, sites: &[&NatSite]) -> Result<Self, Error> {
        let open = |(at, site): (usize, &&NatSite)| {
            let id = worker_name::to_spiffe_id(&super::town::job(), &format!("{stage}.{at}"))?;
            let settings = town.settings(&id, Lines::Tls, IpFamily::V4)?;
            Ok::<_, Error>(
                site.first_machine()
                    .node
                    .enter(|| RendezvousConnection::open(settings))?,
            )
        };
        let lines: Vec<RendezvousConnection> = sites
            .iter()
            .enumerate()
            .map(open)
            .collect::<Result<_, _>>()?;
        for (at, line) in lines.iter().enumerate() {
            if !line.wait_connected(PATIENCE)? {
                return Err(format!("{stage}.{at} does not get to the rendezvous").into());
            }
        }
        let identities = (0..sites.len())
            .map(|at| town.identity(&format!("{stage}.{at}")))
            .collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        let mut workers = Vec::new();
        for ((at, identity), (line, site)) in identities
            .into_iter()
            .enumerate()
            .zip(lines.iter().zip(sites))
        {
            let orders = orders(stage, at, sites.len());
            let met = RemoteConnector::new(line, identity, &orders)?;
            workers.push(Arc::new(
                site.first_machine()
                    .node
                    .enter(|| DataflowWorker::start(orders, || Ok(met)))?,
            ));
        }
        let between = workers.get(1..workers.len() - 1).unwrap_or_default();
        let forwarding = between
            .iter()
            .map(|worker| forward(Arc::clone(worker)))
            .collect();
        let mut chain = Self {
            workers,
            forwarding,
            _lines: lines,
            first: Duration::ZERO,
        };
        chain.send(1)?;
        chain.receive()?;
        chain.first = begun.elapsed();
        Ok(chain)
    }

    /// Sends batches one after another until every edge has moved from the relay; tells how long that took.
    pub(crate) fn settle(&self) -> Result<Duration, Error> {
        let begun = Instant::now();
        while !self.is_direct() {
            self.through(BATCH)?;
            if begun.elapsed() > SETTLES {
                return Err(format!("some edges stay on the relay: {:?}", self.paths()).into());
            }
        }
        Ok(begun.elapsed())
    }

    /// One batch through the whole chain, with nothing else in it.
    pub(crate) fn through(&self, octets: usize) -> Result<Duration, Error> {
        let begun = Instant::now();
        self.send(octets)?;
        self.receive()?;
        Ok(begun.elapsed())
    }

    /// Sends as fast as it goes, for so long, and calls `seen` with the size of every batch that arrives; what is still underway then
    /// is taken out.
    pub(crate) fn stream(
        &self,
        duration: Duration,
        mut seen: impl FnMut(usize),
    ) -> Result<(), Error> {
        let (first, until) = (Arc::clone(&self.workers[0]), Instant::now() + duration);
        let sending = thread::spawn(move || {
            let batch = Bytes::from(vec![7; BATCH]);
            while Instant::now() < until {
                first.send_batch(0, batch.clone())?;
            }
            first.send_batch(0, Bytes::from_static(b"."))
        });
        while self.receive()? == BATCH {
            seen(BATCH);
        }
        sending.join().map_err(|_| "the sender panicked")??;
        Ok(())
    }

    fn send(&self, octets: usize) -> Result<(), Error> {
        Ok(self.workers[0].send_batch(0, Bytes::from(vec![7; octets]))?)
    }

    fn receive(&self) -> Result<usize, Error> {
        match self.workers.last().map(|last| last.receive_next()) {
            Some(Ok(InputEvent::Batch { data, .. })) => Ok(data.len()),
            Some(Err(failure)) => Err(failure.into()),
            other => Err(format!("{other:?} came instead of a batch").into()),
        }
    }

    fn paths(&self) -> Vec<&'static str> {
        self.workers
            .iter()
            .flat_map(|worker| worker.stats().outputs)
            .map(|edge| edge.path)
            .collect()
    }

    fn is_direct(&self) -> bool {
        self.paths().iter().all(|path| *path == "punch")
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        for end in [self.workers.first(), self.workers.last()]
            .into_iter()
            .flatten()
        {
            end.fail_with_reason("the measurement is over");
        }
        self.workers.clear();
        self.forwarding.drain(..).for_each(|one| drop(one.join()));
    }
}

fn orders(stage: &str, at: usize, all: usize) -> WorkerAssignment {
    let input = |from: usize| InputConfig {
        from: format!("{stage}.{from}"),
        processed: Some(0),
        later: false,
    };
    let output = |to: usize| OutputConfig {
        to: format!("{stage}.{to}"),
        sent: 0,
        spill: false,
        later: false,
    };
    WorkerAssignment {
        name: format!("{stage}.{at}"),
        attempt: 1,
        inputs: at.checked_sub(1).map(input).into_iter().collect(),
        outputs: (at + 1 < all).then(|| output(at + 1)).into_iter().collect(),
        window: WINDOW,
        checkpoint: 0,
        spill: None,
        patience: PATIENCE.as_secs_f64(),
    }
}

/// The worker's code: it hands on what comes. It ends with the first edge that does.
fn forward(worker: Arc<DataflowWorker>) -> JoinHandle<()> {
    thread::spawn(move || {
        while let Ok(InputEvent::Batch { data, .. }) = worker.receive_next() {
            if worker.send_batch(0, data).is_err() {
                return;
            }
        }
    })
}
