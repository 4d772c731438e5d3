//! Encodes outgoing items into the batches of their consumers.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_dataflow::topology::Distribution;
use nearpath_dataflow::value::{self, ValueToken};
use nearpath_dataflow::worker::DataflowWorker;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

use super::codec;
use super::value_error;
use super::worker::{Streams, stream_error};

/// Outputs of one worker. Groups are `(how, outputs)`; each group gets every item.
#[pyclass(module = "nearpath.dataflow")]
pub(crate) struct Outbox {
    worker: Arc<DataflowWorker>,
    groups: Vec<OutputGroup>,
    /// Size in bytes at which a batch is sent.
    batch: usize,
    key: Vec<u8>,
}

struct OutputGroup {
    how: Distribution,
    outputs: Vec<usize>,
    /// Outputs that are not open yet, checked before each batch.
    pending_outputs: Vec<usize>,
    /// Batches: one for each output with keys, else a single one.
    batches: Vec<Vec<u8>>,
    next_output: usize,
}

#[pymethods]
impl Outbox {
    #[new]
    fn new(streams: &Streams, groups: Vec<(String, Vec<usize>)>, batch: usize) -> PyResult<Self> {
        let groups = groups.into_iter().map(|(how, outputs)| {
            let how: Distribution = serde_json::from_value(how.into()).map_err(value_error)?;
            let batches = vec![
                Vec::new();
                if how == Distribution::ByKey {
                    outputs.len()
                } else {
                    1
                }
            ];
            let mut group = OutputGroup {
                how,
                outputs: Vec::new(),
                pending_outputs: outputs,
                batches,
                next_output: 0,
            };
            group.open_pending(&streams.worker);
            Ok(group)
        });
        let groups = groups.collect::<PyResult<_>>()?;
        Ok(Self {
            worker: Arc::clone(&streams.worker),
            groups,
            batch,
            key: Vec::new(),
        })
    }

    /// Takes items for at most `seconds`. Returns their number, and true at the iterator's end.
    #[pyo3(signature = (items, seconds=None))]
    fn extend(
        &mut self,
        items: &Bound<'_, PyIterator>,
        seconds: Option<f64>,
    ) -> PyResult<(usize, bool)> {
        let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        let mut count = 0;
        for item in items.clone() {
            self.put_item(&item?)?;
            count += 1;
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok((count, false));
            }
        }
        Ok((count, true))
    }

    /// Sends all unfinished batches.
    fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        let worker = &self.worker;
        for group in &mut self.groups {
            for at in 0..group.batches.len() {
                group.send_batch(py, worker, at)?;
            }
        }
        Ok(())
    }
}

impl Outbox {
    fn put_item(&mut self, item: &Bound<'_, PyAny>) -> PyResult<()> {
        for group in &mut self.groups {
            let at = if group.how == Distribution::ByKey {
                group.put_by_key(item, &mut self.key)?
            } else {
                group.put_item(item)?
            };
            // Sent when full, not before: a batch may exceed the size by one item.
            if group.batches[at].len() >= self.batch {
                group.send_batch(item.py(), &self.worker, at)?;
            }
        }
        Ok(())
    }
}

impl OutputGroup {
    fn put_item(&mut self, item: &Bound<'_, PyAny>) -> PyResult<usize> {
        codec::write_streamed_item(&mut self.batches[0], item).map(|()| 0)
    }

    fn put_by_key(&mut self, item: &Bound<'_, PyAny>, key: &mut Vec<u8>) -> PyResult<usize> {
        let pair = item.cast::<PyTuple>().ok().filter(|pair| !pair.is_empty());
        let pair = pair.ok_or_else(|| {
            PyTypeError::new_err("invalid item for a keyed output: expected (key, value)")
        })?;
        let first = pair.get_item(0)?;
        key.clear();
        codec::write_key(key, &first)?;
        let at = value::key_partition(key, self.outputs.len());
        let batch = &mut self.batches[at];
        // Other keys are normalised for the partition, so the item needs its exact encoding.
        if !codec::is_simple(&first) {
            return codec::write_streamed_item(batch, item).map(|()| at);
        }
        value::write_token(batch, ValueToken::Tuple(pair.len()));
        batch.extend_from_slice(key); // reuses the encoded key
        pair.iter()
            .skip(1)
            .try_for_each(|part| codec::write_streamed_item(batch, &part))
            .map(|()| at)
    }

    /// Adds outputs that were opened meanwhile, which only `spread` groups have.
    fn open_pending(&mut self, worker: &DataflowWorker) {
        if !self.pending_outputs.is_empty() {
            let open = worker.filter_open_outputs(&self.pending_outputs);
            self.pending_outputs.retain(|output| !open.contains(output));
            self.outputs.extend(open);
        }
    }

    fn send_batch(&mut self, py: Python<'_>, worker: &DataflowWorker, at: usize) -> PyResult<()> {
        if self.batches[at].is_empty() {
            return Ok(());
        }
        self.open_pending(worker);
        // The next batch will have about the same size.
        let capacity = self.batches[at].capacity();
        let batch = Bytes::from(mem::replace(
            &mut self.batches[at],
            Vec::with_capacity(capacity),
        ));
        let to = match self.how {
            Distribution::Broadcast => &self.outputs[..],
            Distribution::Spread => {
                // Round robin: consumers of a spread group are interchangeable.
                self.next_output = (self.next_output + 1) % self.outputs.len();
                &self.outputs[self.next_output..=self.next_output]
            }
            Distribution::ByKey | Distribution::OneToOne | Distribution::Gather => {
                &self.outputs[at..=at]
            }
        };
        py.detach(|| {
            to.iter()
                .try_for_each(|output| worker.send_batch(*output, batch.clone()))
        })
        .map_err(stream_error)
    }
}
