//! Encodes outgoing items into the batches of their consumers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nearpath_dataflow::topology::Distribution;
use nearpath_dataflow::value::{self, ValueToken};
use nearpath_dataflow::worker::{ItemBatches, OutputGroup};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

use super::codec;
use super::value_error;
use super::worker::{Streams, stream_error};

/// Outputs of one worker. Groups are `(how, outputs, linger)`; each group gets every item.
///
/// Frozen: a generator of the user may flush while its items are taken.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Outbox {
    batches: ItemBatches,
    groups: Vec<GroupTarget>,
    items: AtomicU64,
    /// Size in bytes of a full batch.
    batch: usize,
}

struct GroupTarget {
    is_by_key: bool,
    outputs: usize,
}

/// Memory for one item, outside of the locks that the timer takes: the codec calls Python.
#[derive(Default)]
struct ItemBuffer {
    item: Vec<u8>,
    key: Vec<u8>,
}

#[pymethods]
impl Outbox {
    #[new]
    fn new(
        streams: &Streams,
        groups: Vec<(String, Vec<usize>, Option<f64>)>,
        batch: usize,
    ) -> PyResult<Self> {
        let groups = groups
            .into_iter()
            .map(|(how, outputs, linger)| output_group(how, outputs, linger));
        let groups = groups.collect::<PyResult<Vec<_>>>()?;
        let targets = groups.iter().map(|group| GroupTarget {
            is_by_key: group.distribution == Distribution::ByKey,
            outputs: group.outputs.len(),
        });
        Ok(Self {
            groups: targets.collect(),
            batches: streams
                .worker
                .batch_items(groups, batch)
                .map_err(stream_error)?,
            items: AtomicU64::new(0),
            batch,
        })
    }

    /// Takes items for at most `seconds`. Returns their number, and true at the iterator's end.
    #[pyo3(signature = (items, seconds=None))]
    fn extend(
        &self,
        items: &Bound<'_, PyIterator>,
        seconds: Option<f64>,
    ) -> PyResult<(usize, bool)> {
        let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        let (mut count, mut buffer) = (0, ItemBuffer::default());
        let before = self.items.load(Ordering::Relaxed);
        for item in items.clone() {
            self.put_item(&item?, &mut buffer)?;
            count += 1;
            // Relaxed: a number for reports, which orders nothing. One thread takes items, and a
            // store costs less than an addition.
            self.items.store(before + count as u64, Ordering::Relaxed);
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok((count, false));
            }
        }
        Ok((count, true))
    }

    /// Sends all unfinished batches.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.batches.flush()).map_err(stream_error)
    }

    /// Number of items so far, also during `extend`.
    #[getter]
    fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }
}

fn output_group(how: String, outputs: Vec<usize>, linger: Option<f64>) -> PyResult<OutputGroup> {
    let linger = linger.map(Duration::try_from_secs_f64).transpose();
    Ok(OutputGroup {
        distribution: serde_json::from_value(how.into()).map_err(value_error)?,
        outputs,
        linger: linger.map_err(value_error)?,
    })
}

impl Outbox {
    fn put_item(&self, item: &Bound<'_, PyAny>, buffer: &mut ItemBuffer) -> PyResult<()> {
        for (group, target) in self.groups.iter().enumerate() {
            let at = if target.is_by_key {
                encode_by_key(item, target.outputs, buffer)?
            } else {
                codec::write_streamed_item(&mut buffer.item, item)?;
                0
            };
            let send = || self.batches.send(group, at);
            // Alone: with others before it, it may exceed a frame, and it would be copied.
            if buffer.item.len() >= self.batch {
                item.py().detach(send).map_err(stream_error)?;
            }
            if self.batches.append(group, at, &mut buffer.item) {
                item.py().detach(send).map_err(stream_error)?;
            }
        }
        Ok(())
    }
}

/// Encodes a pair. Returns the output of its key.
fn encode_by_key(
    item: &Bound<'_, PyAny>,
    outputs: usize,
    buffer: &mut ItemBuffer,
) -> PyResult<usize> {
    let pair = item.cast::<PyTuple>().ok().filter(|pair| !pair.is_empty());
    let pair = pair.ok_or_else(|| {
        PyTypeError::new_err("invalid item for a keyed output: expected (key, value)")
    })?;
    let first = pair.get_item(0)?;
    let ItemBuffer { item: bytes, key } = buffer;
    key.clear();
    codec::write_key(key, &first)?;
    let at = value::key_partition(key, outputs);
    // Other keys are normalised for the partition, so the item needs its exact encoding.
    if !codec::is_simple(&first) {
        return codec::write_streamed_item(bytes, item).map(|()| at);
    }
    value::write_token(bytes, ValueToken::Tuple(pair.len()));
    bytes.extend_from_slice(key); // reuses the encoded key
    pair.iter()
        .skip(1)
        .try_for_each(|part| codec::write_streamed_item(bytes, &part))
        .map(|()| at)
}
