//! A worker's streams, for Python.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use nearpath_dataflow::local::{self, Addresses, Local};
use nearpath_dataflow::remote::connector::Met;
use nearpath_dataflow::remote::identity::Identity;
use nearpath_dataflow::worker::{Failure, Orders, Received, Worker};
use pyo3::exceptions::{PyConnectionError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use super::{elsewhere, wrong};
use crate::{payload, view};

/// Where a worker will be dialled.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Door(Mutex<Option<local::Door>>);

#[pymethods]
impl Door {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(local::Door::open()?))))
    }

    /// The port on loopback.
    #[getter]
    fn port(&self) -> PyResult<u16> {
        let door = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(door.as_ref().ok_or_else(taken)?.address()?.port())
    }
}

fn taken() -> PyErr {
    PyRuntimeError::new_err("the door is in use")
}

fn on_loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// All streams of one worker.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Streams {
    pub(super) worker: Arc<Worker>,
    /// Of workers on this machine.
    addresses: Addresses,
}

/// What others did is a ConnectionError, after which another attempt may do better.
pub(super) fn raise(failure: Failure) -> PyErr {
    match failure {
        Failure::Here(why) => PyRuntimeError::new_err(why),
        other => PyConnectionError::new_err(other.to_string()),
    }
}

#[pymethods]
impl Streams {
    /// Orders as JSON; the ports of those whom it speaks to, by name.
    #[new]
    fn new(orders: &str, door: &Door, token: &[u8], ports: HashMap<String, u16>) -> PyResult<Self> {
        let orders: Orders = serde_json::from_str(orders).map_err(wrong)?;
        let token = token.try_into().map_err(|_| wrong("a token has 32 bytes"))?;
        let door = door.0.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(taken)?;
        let open = orders.inputs.iter().filter(|input| input.processed.is_some());
        let producers: Vec<String> = open.map(|input| input.from.clone()).collect();
        let addresses = Addresses::default();
        ports.iter().for_each(|(name, port)| addresses.add(name, on_loopback(*port)));
        let (name, consumers) = (orders.name.clone(), addresses.clone());
        let connector = move || Local::new(door, name, token, producers, consumers);
        Ok(Self { worker: Arc::new(Worker::start(orders, connector)?), addresses })
    }

    /// The same over links, with workers that come to the same rendezvous: for each attempt anew, on one line. The identity is
    /// the worker's.
    #[staticmethod]
    fn over(orders: &str, line: &elsewhere::Line, identity: &str) -> PyResult<Self> {
        let orders: Orders = serde_json::from_str(orders).map_err(wrong)?;
        let identity = Identity::read(identity).map_err(wrong)?;
        let line = line.open()?;
        let met = Met::new(&line, identity, &orders).map_err(wrong)?;
        Ok(Self { worker: Arc::new(Worker::start(orders, || Ok(met))?), addresses: Addresses::default() })
    }

    /// `(input, batch)`; or the number of a barrier; or None when all inputs have ended.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Incoming<'py>> {
        Ok(match py.detach(|| self.worker.receive()).map_err(raise)? {
            Received::Batch { input, data } => Incoming::Batch((input, view::memoryview(py, data.into())?)),
            Received::Barrier(number) => Incoming::Barrier(number),
            Received::Ended => Incoming::Ended(None),
        })
    }

    /// The barrier that begins here, now.
    fn due(&self) -> Option<u64> {
        self.worker.due()
    }

    /// An input that was to come later is there.
    fn open_input(&self, input: usize) {
        self.worker.open_input(input);
    }

    /// An output that was to come later is there; on this machine, at that port.
    #[pyo3(signature = (output, name, port=None))]
    fn open_output(&self, output: usize, name: &str, port: Option<u16>) {
        if let Some(port) = port {
            self.addresses.add(name, on_loopback(port));
        }
        self.worker.open_output(output);
    }

    /// An input that was to come later never does.
    fn never(&self, input: usize) {
        self.worker.never(input);
    }

    /// Those of some outputs that may be sent to.
    fn open_of(&self, outputs: Vec<usize>) -> Vec<usize> {
        self.worker.open_of(&outputs)
    }

    /// The job begins a checkpoint.
    fn trigger(&self, checkpoint: u64) {
        self.worker.trigger(checkpoint);
    }

    /// One batch to one output; a batch that came goes on without a copy.
    fn send(&self, py: Python<'_>, output: usize, batch: &Bound<'_, PyAny>) -> PyResult<usize> {
        let batch = Bytes::from(payload::read(batch)?);
        let bytes = batch.len();
        py.detach(|| self.worker.send(output, batch)).map_err(raise)?;
        Ok(bytes)
    }

    /// Cuts all outputs. Where the worker stands: `(inputs, outputs)`.
    fn barrier(&self, py: Python<'_>, checkpoint: u64) -> PyResult<(Vec<Option<u64>>, Vec<u64>)> {
        let positions = py.detach(|| self.worker.barrier(checkpoint)).map_err(raise)?;
        Ok((positions.inputs, positions.outputs))
    }

    /// Ends all outputs, and waits until all is processed.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.worker.finish()).map_err(raise)
    }

    /// Tells all peers.
    fn fail(&self, py: Python<'_>, why: &str) {
        py.detach(|| self.worker.fail(why));
    }

    /// As JSON.
    fn stats(&self) -> PyResult<String> {
        serde_json::to_string(&self.worker.stats()).map_err(wrong)
    }
}

#[derive(IntoPyObject)]
pub(crate) enum Incoming<'py> {
    Batch((usize, Bound<'py, PyMemoryView>)),
    Barrier(u64),
    Ended(Option<u64>),
}
