//! Items on their way out: each is written into the batch of the consumer that gets it.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_dataflow::topology::How;
use nearpath_dataflow::value::{self, Token};
use nearpath_dataflow::worker::Worker;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

use super::codec;
use super::worker::{Streams, raise};
use super::wrong;

/// The outputs of one worker. Groups are `(how, outputs)`: each gets every item.
#[pyclass(module = "nearpath.dataflow")]
pub(crate) struct Outbox {
    worker: Arc<Worker>,
    groups: Vec<Group>,
    /// A batch goes when it has so many bytes.
    batch: usize,
    key: Vec<u8>,
}

struct Group {
    how: How,
    outputs: Vec<usize>,
    /// Outputs that are not open yet: looked after before each batch.
    later: Vec<usize>,
    /// By key: one an output. Else one.
    batches: Vec<Vec<u8>>,
    turn: usize,
}

#[pymethods]
impl Outbox {
    #[new]
    fn new(streams: &Streams, groups: Vec<(String, Vec<usize>)>, batch: usize) -> PyResult<Self> {
        let groups = groups.into_iter().map(|(how, outputs)| {
            let how: How = serde_json::from_value(how.into()).map_err(wrong)?;
            let batches = vec![Vec::new(); if how == How::ByKey { outputs.len() } else { 1 }];
            let mut group = Group { how, outputs: Vec::new(), later: outputs, batches, turn: 0 };
            group.look(&streams.worker);
            Ok(group)
        });
        let groups = groups.collect::<PyResult<_>>()?;
        Ok(Self { worker: Arc::clone(&streams.worker), groups, batch, key: Vec::new() })
    }

    /// Takes what the iterator yields, for so many seconds: how many there were, and whether that was all.
    #[pyo3(signature = (items, seconds=None))]
    fn extend(&mut self, items: &Bound<'_, PyIterator>, seconds: Option<f64>) -> PyResult<(usize, bool)> {
        let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        let mut count = 0;
        for item in items.clone() {
            self.put(&item?)?;
            count += 1;
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok((count, false));
            }
        }
        Ok((count, true))
    }

    /// Sends what is there, however little.
    fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        let worker = &self.worker;
        for group in &mut self.groups {
            for at in 0..group.batches.len() {
                group.send(py, worker, at)?;
            }
        }
        Ok(())
    }
}

impl Outbox {
    fn put(&mut self, item: &Bound<'_, PyAny>) -> PyResult<()> {
        for group in &mut self.groups {
            let at = if group.how == How::ByKey { group.put_by_key(item, &mut self.key)? } else { group.put(item)? };
            if group.batches[at].len() >= self.batch {
                group.send(item.py(), &self.worker, at)?;
            }
        }
        Ok(())
    }
}

impl Group {
    fn put(&mut self, item: &Bound<'_, PyAny>) -> PyResult<usize> {
        codec::write(&mut self.batches[0], item).map(|()| 0)
    }

    fn put_by_key(&mut self, item: &Bound<'_, PyAny>, key: &mut Vec<u8>) -> PyResult<usize> {
        let pair = item.cast::<PyTuple>().ok().filter(|pair| !pair.is_empty());
        let pair = pair.ok_or_else(|| PyTypeError::new_err("what goes by key is a pair: (key, value)"))?;
        let first = pair.get_item(0)?;
        key.clear();
        codec::write_key(key, &first)?;
        let at = value::share(key, self.outputs.len());
        let batch = &mut self.batches[at];
        if !codec::is_simple(&first) {
            return codec::write(batch, item).map(|()| at);
        }
        value::write(batch, Token::Tuple(pair.len()));
        batch.extend_from_slice(key); // written once
        pair.iter().skip(1).try_for_each(|part| codec::write(batch, &part)).map(|()| at)
    }

    /// Only what is spread grows.
    fn look(&mut self, worker: &Worker) {
        if !self.later.is_empty() {
            let open = worker.open_of(&self.later);
            self.later.retain(|output| !open.contains(output));
            self.outputs.extend(open);
        }
    }

    fn send(&mut self, py: Python<'_>, worker: &Worker, at: usize) -> PyResult<()> {
        if self.batches[at].is_empty() {
            return Ok(());
        }
        self.look(worker);
        let capacity = self.batches[at].capacity();
        let batch = Bytes::from(mem::replace(&mut self.batches[at], Vec::with_capacity(capacity)));
        let to = match self.how {
            How::Broadcast => &self.outputs[..],
            How::Spread => {
                self.turn = (self.turn + 1) % self.outputs.len();
                &self.outputs[self.turn..=self.turn]
            }
            How::ByKey | How::OneToOne | How::Gather => &self.outputs[at..=at],
        };
        py.detach(|| to.iter().try_for_each(|output| worker.send(*output, batch.clone()))).map_err(raise)
    }
}
