//! Streams of a worker, for Python.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use nearpath_dataflow::local::{self, ConsumerAddresses, LocalConnector};
use nearpath_dataflow::remote::connector::RemoteConnector;
use nearpath_dataflow::remote::identity::WorkerIdentity;
use nearpath_dataflow::worker::{DataflowWorker, InputEvent, WorkerAssignment, WorkerFailure};
use pyo3::exceptions::{PyConnectionError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use super::{remote_workers, value_error};
use crate::{payload, view};

/// Listener that a worker's peers connect to.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Listener(Mutex<Option<local::LocalListener>>);

#[pymethods]
impl Listener {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(local::LocalListener::bind()?))))
    }

    /// Port on loopback.
    #[getter]
    fn port(&self) -> PyResult<u16> {
        let listener = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(listener
            .as_ref()
            .ok_or_else(in_use_error)?
            .local_address()?
            .port())
    }
}

fn in_use_error() -> PyErr {
    PyRuntimeError::new_err("the listener is in use already: create another one")
}

fn loopback_addr(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// All streams of one worker.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Streams {
    pub(super) worker: Arc<DataflowWorker>,
    /// Addresses of workers on this machine.
    addresses: ConsumerAddresses,
}

pyo3::create_exception!(
    nearpath.dataflow,
    PeerLostError,
    PyConnectionError,
    "Another worker, or the store of checkpoints, is lost: another attempt may succeed. A class of its own, because the code of workers may raise ConnectionError, too."
);

/// Converts a failure. One that other workers caused is a [`PeerLostError`].
pub(super) fn stream_error(failure: WorkerFailure) -> PyErr {
    match failure {
        WorkerFailure::Local(why) => PyRuntimeError::new_err(why),
        other => PeerLostError::new_err(other.to_string()),
    }
}

#[pymethods]
impl Streams {
    /// Starts the streams from an assignment as JSON, with the ports of its peers by name.
    #[new]
    fn new(
        assignment: &str,
        listener: &Listener,
        token: &[u8],
        ports: HashMap<String, u16>,
    ) -> PyResult<Self> {
        let assignment: WorkerAssignment = serde_json::from_str(assignment).map_err(value_error)?;
        let token = token
            .try_into()
            .map_err(|_| value_error("invalid token: expected 32 bytes"))?;
        // Taken out: a listener serves a single set of streams.
        let listener = listener
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or_else(in_use_error)?;
        // Inputs without a position are pending: their producers connect later.
        let open = assignment
            .inputs
            .iter()
            .filter(|input| input.processed.is_some());
        let producers: Vec<String> = open.map(|input| input.from.clone()).collect();
        let addresses = ConsumerAddresses::default();
        ports
            .iter()
            .for_each(|(name, port)| addresses.insert(name, loopback_addr(*port)));
        let (name, consumers) = (assignment.name.clone(), addresses.clone());
        // Created on the worker's own thread, which has the event loop.
        let connector = move || LocalConnector::new(listener, name, token, producers, consumers);
        Ok(Self {
            worker: Arc::new(DataflowWorker::start(assignment, connector)?),
            addresses,
        })
    }

    /// Starts the streams to workers on other machines, for each attempt over the same connection
    /// to the rendezvous. The identity is the worker's.
    #[staticmethod]
    fn connect_remote(
        assignment: &str,
        rendezvous: &remote_workers::RendezvousConnection,
        identity: &str,
    ) -> PyResult<Self> {
        let assignment: WorkerAssignment = serde_json::from_str(assignment).map_err(value_error)?;
        let identity = WorkerIdentity::from_json(identity).map_err(value_error)?;
        let connection = rendezvous.connection()?;
        let connector =
            RemoteConnector::new(&connection, identity, &assignment).map_err(value_error)?;
        Ok(Self {
            worker: Arc::new(DataflowWorker::start(assignment, || Ok(connector))?),
            addresses: ConsumerAddresses::default(),
        })
    }

    /// Receives `(input, batch)`, the number of a barrier, or None when all inputs have ended.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<ReceivedItem<'py>> {
        Ok(
            match py
                .detach(|| self.worker.receive_next())
                .map_err(stream_error)?
            {
                InputEvent::Batch { input, data } => {
                    ReceivedItem::Batch((input, view::memoryview(py, data.into())?))
                }
                InputEvent::Barrier(number) => ReceivedItem::Barrier(number),
                InputEvent::Ended => ReceivedItem::Ended(None),
            },
        )
    }

    /// Returns the checkpoint whose barrier this worker must send now, once each.
    fn take_due_barrier(&self) -> Option<u64> {
        self.worker.take_due_barrier()
    }

    /// Opens a pending input.
    fn open_input(&self, input: usize) {
        self.worker.open_input(input);
    }

    /// Opens a pending output; on this machine, at this port.
    #[pyo3(signature = (output, name, port=None))]
    fn open_output(&self, output: usize, name: &str, port: Option<u16>) {
        if let Some(port) = port {
            self.addresses.insert(name, loopback_addr(port));
        }
        self.worker.open_output(output);
    }

    /// Ends a pending input that never opens.
    fn mark_input_unused(&self, input: usize) {
        self.worker.mark_input_unused(input);
    }

    /// Returns those of these outputs that are open.
    fn filter_open_outputs(&self, outputs: Vec<usize>) -> Vec<usize> {
        self.worker.filter_open_outputs(&outputs)
    }

    /// Starts a checkpoint.
    fn trigger_checkpoint(&self, checkpoint: u64) {
        self.worker.trigger_checkpoint(checkpoint);
    }

    /// Sends a batch to an output. A received batch is forwarded without a copy.
    fn send(&self, py: Python<'_>, output: usize, batch: &Bound<'_, PyAny>) -> PyResult<usize> {
        // The size is returned for statistics, because the batch itself is consumed.
        let batch = Bytes::from(payload::read_payload(batch)?);
        let bytes = batch.len();
        py.detach(|| self.worker.send_batch(output, batch))
            .map_err(stream_error)?;
        Ok(bytes)
    }

    /// Sends a barrier to all outputs. Returns the worker's positions `(inputs, outputs)`.
    fn send_barrier(
        &self,
        py: Python<'_>,
        checkpoint: u64,
    ) -> PyResult<(Vec<Option<u64>>, Vec<u64>)> {
        let positions = py
            .detach(|| self.worker.send_barrier(checkpoint))
            .map_err(stream_error)?;
        Ok((positions.inputs, positions.outputs))
    }

    /// Ends all outputs, and waits until everything is processed.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.worker.finish_outputs())
            .map_err(stream_error)
    }

    /// Reports a failure to all peers.
    fn fail(&self, py: Python<'_>, why: &str) {
        py.detach(|| self.worker.fail_with_reason(why));
    }

    /// Statistics as JSON.
    fn stats(&self) -> PyResult<String> {
        serde_json::to_string(&self.worker.stats()).map_err(value_error)
    }
}

#[derive(IntoPyObject)]
pub(crate) enum ReceivedItem<'py> {
    Batch((usize, Bound<'py, PyMemoryView>)),
    Barrier(u64),
    Ended(Option<u64>),
}
