//! A chain of workers of a job, each on its own machine behind its own NAT. The first worker sends,
//! the others forward, and the last one receives. Streams are those of any job
//! ([`nearpath_dataflow::worker`]) over established links
//! ([`nearpath_dataflow::remote::connector`]).

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

use super::fixture::{ControlTransport, RendezvousSetup};
use crate::remote::BenchError;

/// Defaults of a job's worker: bytes in flight on an edge, and the time limit for peers.
const EDGE_WINDOW_BYTES: usize = 4 << 20;
const PEER_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes per batch, as in the SDK.
pub(crate) const BATCH_BYTES: usize = 256 << 10;
/// Time limit for all links to become direct.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A chain of dataflow workers; dropping it stops them.
pub(crate) struct DataflowChain {
    /// The workers in order, each with its control connection.
    workers: Vec<Arc<DataflowWorker>>,
    forwarding: Vec<JoinHandle<()>>,
    _connections: Vec<RendezvousConnection>,
    /// Time from the last control connection to the first batch at the last worker.
    pub(crate) first_batch_after: Duration,
}

impl DataflowChain {
    /// Starts a worker in each of these sites, called `stage.N`. Returns after the first batch has
    /// passed.
    pub(crate) fn start(
        fixture: &RendezvousSetup,
        stage: &str,
        sites: &[&NatSite],
    ) -> Result<Self, BenchError> {
        let open = |(at, site): (usize, &&NatSite)| {
            let id =
                worker_name::to_spiffe_id(&super::fixture::job_name(), &format!("{stage}.{at}"))?;
            let settings = fixture.control_settings(&id, ControlTransport::Tls, IpFamily::V4)?;
            Ok::<_, BenchError>(
                site.first_machine()
                    .node
                    .enter(|| RendezvousConnection::open(settings))?,
            )
        };
        let connections: Vec<RendezvousConnection> = sites
            .iter()
            .enumerate()
            .map(open)
            .collect::<Result<_, _>>()?;
        for (at, connection) in connections.iter().enumerate() {
            if !connection.wait_connected(PEER_TIMEOUT)? {
                return Err(format!("{stage}.{at} cannot connect to the rendezvous").into());
            }
        }
        // Issued before the clock starts: keys are no part of the start of a chain.
        let identities = (0..sites.len())
            .map(|at| fixture.worker_identity(&format!("{stage}.{at}")))
            .collect::<Result<Vec<_>, _>>()?;
        // The clock of `first_batch_after` starts here: each worker connects from its start on.
        let begun = Instant::now();
        let mut workers = Vec::new();
        for ((at, identity), (connection, site)) in identities
            .into_iter()
            .enumerate()
            .zip(connections.iter().zip(sites))
        {
            let orders = worker_assignment(stage, at, sites.len());
            let met = RemoteConnector::new(connection, identity, &orders)?;
            workers.push(Arc::new(
                site.first_machine()
                    .node
                    // Sockets belong to the namespace of the thread that opens them.
                    .enter(|| DataflowWorker::start(orders, || Ok(met)))?,
            ));
        }
        let between = workers.get(1..workers.len() - 1).unwrap_or_default();
        let forwarding = between
            .iter()
            .map(|worker| spawn_forwarder(Arc::clone(worker)))
            .collect();
        let mut chain = Self {
            workers,
            forwarding,
            _connections: connections,
            first_batch_after: Duration::ZERO,
        };
        // One byte through all edges: the chain stands when it arrives.
        chain.send_batch(1)?;
        chain.receive_batch()?;
        chain.first_batch_after = begun.elapsed();
        Ok(chain)
    }

    /// Sends batches in sequence until every edge is direct. Returns the duration.
    pub(crate) fn wait_direct(&self) -> Result<Duration, BenchError> {
        let begun = Instant::now();
        while !self.is_direct() {
            // An edge moves to its direct path only when bytes flow in it.
            self.send_through(BATCH_BYTES)?;
            if begun.elapsed() > SETTLE_TIMEOUT {
                return Err(
                    format!("some edges are still relayed: {:?}", self.edge_paths()).into(),
                );
            }
        }
        Ok(begun.elapsed())
    }

    /// Sends a batch through the idle chain.
    pub(crate) fn send_through(&self, octets: usize) -> Result<Duration, BenchError> {
        let begun = Instant::now();
        self.send_batch(octets)?;
        self.receive_batch()?;
        Ok(begun.elapsed())
    }

    /// Sends at full speed for this duration and calls `seen` with the size of every received
    /// batch. Batches still in flight are received at the end.
    pub(crate) fn stream_batches(
        &self,
        duration: Duration,
        mut seen: impl FnMut(usize),
    ) -> Result<(), BenchError> {
        let (first, until) = (Arc::clone(&self.workers[0]), Instant::now() + duration);
        let sending = thread::spawn(move || {
            let batch = Bytes::from(vec![7; BATCH_BYTES]);
            while Instant::now() < until {
                first.send_batch(0, batch.clone())?;
            }
            // A batch of another size marks the end, so that nothing is left in the chain for the
            // next measurement.
            first.send_batch(0, Bytes::from_static(b"."))
        });
        while self.receive_batch()? == BATCH_BYTES {
            seen(BATCH_BYTES);
        }
        sending.join().map_err(|_| "the sender panicked")??;
        Ok(())
    }

    fn send_batch(&self, octets: usize) -> Result<(), BenchError> {
        Ok(self.workers[0].send_batch(0, Bytes::from(vec![7; octets]))?)
    }

    fn receive_batch(&self) -> Result<usize, BenchError> {
        match self.workers.last().map(|last| last.receive_next()) {
            Some(Ok(InputEvent::Batch { data, .. })) => Ok(data.len()),
            Some(Err(failure)) => Err(failure.into()),
            other => Err(format!("expected a batch, got {other:?}").into()),
        }
    }

    fn edge_paths(&self) -> Vec<&'static str> {
        self.workers
            .iter()
            .flat_map(|worker| worker.stats().outputs)
            .map(|edge| edge.path)
            .collect()
    }

    fn is_direct(&self) -> bool {
        self.edge_paths().iter().all(|path| *path == "punch")
    }
}

impl Drop for DataflowChain {
    fn drop(&mut self) {
        for end in [self.workers.first(), self.workers.last()]
            .into_iter()
            .flatten()
        {
            // Both ends fail; the workers between learn it from their edges and their threads end.
            end.fail_with_reason("the measurement is over");
        }
        self.workers.clear();
        self.forwarding.drain(..).for_each(|one| drop(one.join()));
    }
}

fn worker_assignment(stage: &str, at: usize, all: usize) -> WorkerAssignment {
    let input = |from: usize| InputConfig {
        from: format!("{stage}.{from}"),
        processed: Some(0),
        pending: false,
    };
    let output = |to: usize| OutputConfig {
        to: format!("{stage}.{to}"),
        sent: 0,
        spill: false,
        pending: false,
    };
    WorkerAssignment {
        name: format!("{stage}.{at}"),
        attempt: 1,
        inputs: at.checked_sub(1).map(input).into_iter().collect(),
        outputs: (at + 1 < all).then(|| output(at + 1)).into_iter().collect(),
        window: EDGE_WINDOW_BYTES,
        checkpoint: 0,
        spill: None,
        connect_timeout: PEER_TIMEOUT.as_secs_f64(),
    }
}

/// Starts the worker's code, which forwards batches and ends with its first edge.
fn spawn_forwarder(worker: Arc<DataflowWorker>) -> JoinHandle<()> {
    thread::spawn(move || {
        while let Ok(InputEvent::Batch { data, .. }) = worker.receive_next() {
            if worker.send_batch(0, data).is_err() {
                return;
            }
        }
    })
}
