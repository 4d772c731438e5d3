//! A worker's streams, for Python.

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

/// Where a worker will be dialled.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Door(Mutex<Option<local::LocalListener>>);

#[pymethods]
impl Door {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(local::LocalListener::bind()?))))
    }

    /// The port on loopback.
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
    PyRuntimeError::new_err("the door is in use")
}

fn loopback_addr(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// All streams of one worker.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Streams {
    pub(super) worker: Arc<DataflowWorker>,
    /// Of workers on this machine.
    addresses: ConsumerAddresses,
}

/// What others did is a ConnectionError, after which another attempt may do better.
pub(super) fn stream_error(failure: WorkerFailure) -> PyErr {
    match failure {
        WorkerFailure::Local(why) => PyRuntimeError::new_err(why),
        other => PyConnectionError::new_err(other.to_string()),
    }
}

#[pymethods]
impl Streams {
    /// Orders as JSON; the ports of those whom it speaks to, by name.
    #[new]
    fn new(orders: &str, door: &Door, token: &[u8], ports: HashMap<String, u16>) -> PyResult<Self> {
        let orders: WorkerAssignment = serde_json::from_str(orders).map_err(value_error)?;
        let token = token
            .try_into()
            .map_err(|_| value_error("a token has 32 bytes"))?;
        let listener = door
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or_else(in_use_error)?;
        let open = orders
            .inputs
            .iter()
            .filter(|input| input.processed.is_some());
        let producers: Vec<String> = open.map(|input| input.from.clone()).collect();
        let addresses = ConsumerAddresses::default();
        ports
            .iter()
            .for_each(|(name, port)| addresses.insert(name, loopback_addr(*port)));
        let (name, consumers) = (orders.name.clone(), addresses.clone());
        let connector = move || LocalConnector::new(listener, name, token, producers, consumers);
        Ok(Self {
            worker: Arc::new(DataflowWorker::start(orders, connector)?),
            addresses,
        })
    }

    /// The same over links, with workers that come to the same rendezvous: for each attempt anew, on one line. The identity is
    /// the worker's.
    #[staticmethod]
    fn over(orders: &str, line: &remote_workers::Line, identity: &str) -> PyResult<Self> {
        let orders: WorkerAssignment = serde_json::from_str(orders).map_err(value_error)?;
        let identity = WorkerIdentity::from_json(identity).map_err(value_error)?;
        let connection = line.connection()?;
        let met = RemoteConnector::new(&connection, identity, &orders).map_err(value_error)?;
        Ok(Self {
            worker: Arc::new(DataflowWorker::start(orders, || Ok(met))?),
            addresses: ConsumerAddresses::default(),
        })
    }

    /// `(input, batch)`; or the number of a barrier; or None when all inputs have ended.
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

    /// The barrier that begins here, now.
    fn due(&self) -> Option<u64> {
        self.worker.take_due_barrier()
    }

    /// An input that was to come later is there.
    fn open_input(&self, input: usize) {
        self.worker.open_input(input);
    }

    /// An output that was to come later is there; on this machine, at that port.
    #[pyo3(signature = (output, name, port=None))]
    fn open_output(&self, output: usize, name: &str, port: Option<u16>) {
        if let Some(port) = port {
            self.addresses.insert(name, loopback_addr(port));
        }
        self.worker.open_output(output);
    }

    /// An input that was to come later never does.
    fn never(&self, input: usize) {
        self.worker.mark_input_unused(input);
    }

    /// Those of some outputs that may be sent to.
    fn open_of(&self, outputs: Vec<usize>) -> Vec<usize> {
        self.worker.open_outputs(&outputs)
    }

    /// The job begins a checkpoint.
    fn trigger(&self, checkpoint: u64) {
        self.worker.trigger_checkpoint(checkpoint);
    }

    /// One batch to one output; a batch that came goes on without a copy.
    fn send(&self, py: Python<'_>, output: usize, batch: &Bound<'_, PyAny>) -> PyResult<usize> {
        let batch = Bytes::from(payload::read_payload(batch)?);
        let bytes = batch.len();
        py.detach(|| self.worker.send_batch(output, batch))
            .map_err(stream_error)?;
        Ok(bytes)
    }

    /// Cuts all outputs. Where the worker stands: `(inputs, outputs)`.
    fn barrier(&self, py: Python<'_>, checkpoint: u64) -> PyResult<(Vec<Option<u64>>, Vec<u64>)> {
        let positions = py
            .detach(|| self.worker.send_barrier(checkpoint))
            .map_err(stream_error)?;
        Ok((positions.inputs, positions.outputs))
    }

    /// Ends all outputs, and waits until all is processed.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.worker.finish_outputs())
            .map_err(stream_error)
    }

    /// Tells all peers.
    fn fail(&self, py: Python<'_>, why: &str) {
        py.detach(|| self.worker.fail_with_reason(why));
    }

    /// As JSON.
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
