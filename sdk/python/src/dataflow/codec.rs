//! The default codec: plain Python values, and nothing that runs code when it is read.

use nearpath_dataflow::frame::MAX_PAYLOAD_BYTES;
use nearpath_dataflow::value::{self, MAX_NESTING_DEPTH, ValueReader, ValueToken};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::value_error;
use crate::payload;

/// Form of encoded values.
#[derive(Clone, Copy, PartialEq)]
enum ValueForm {
    /// Values decode to themselves.
    Exact,
    /// Values that are equal in Python encode alike: `True`, `1` and `1.0`.
    Key,
}

/// Form of encoded values, and the size at which an encoding is given up.
#[derive(Clone, Copy)]
struct Encoding {
    form: ValueForm,
    max_bytes: usize,
}

impl Encoding {
    /// For files and checkpoints, which have no frames.
    const UNBOUNDED: Self = Self {
        form: ValueForm::Exact,
        max_bytes: usize::MAX,
    };

    /// Refuses a buffer of `bytes`: before a large text is copied into it, and after each part of a
    /// container.
    fn check_size(self, bytes: usize) -> PyResult<()> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        let max = self.max_bytes >> 20;
        Err(PyValueError::new_err(format!(
            "an item has more than {max} MiB, the most that a stream carries at once: divide it, or send the name of a file"
        )))
    }
}

/// Encodes items as one batch.
#[pyfunction]
pub(crate) fn encode<'py>(items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut buffer = Vec::new();
    for item in items.try_iter()? {
        write_item(&mut buffer, &item?)?;
    }
    Ok(PyBytes::new(items.py(), &buffer))
}

/// Decodes the items of a batch.
#[pyfunction]
pub(crate) fn decode<'py>(batch: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let bytes = payload::read_payload(batch)?;
    let (items, mut reader) = (PyList::empty(batch.py()), ValueReader::new(&bytes));
    while !reader.is_empty() {
        items.append(read_item(batch.py(), &mut reader, 0)?)?;
    }
    Ok(items)
}

/// Index of the consumer, among `consumers`, that gets the key.
#[pyfunction]
pub(crate) fn key_partition(key: &Bound<'_, PyAny>, consumers: usize) -> PyResult<usize> {
    let mut buffer = Vec::new();
    write_key(&mut buffer, key)?;
    Ok(value::key_partition(&buffer, consumers))
}

/// Consumer indexes of many keys, as 32-bit numbers.
#[pyfunction]
pub(crate) fn key_partitions<'py>(
    keys: &Bound<'py, PyList>,
    consumers: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let (mut buffer, mut partitions) = (Vec::new(), Vec::with_capacity(keys.len() * 4));
    for key in keys.iter() {
        buffer.clear();
        write_key(&mut buffer, &key)?;
        partitions
            .extend_from_slice(&(value::key_partition(&buffer, consumers) as u32).to_ne_bytes());
    }
    Ok(PyBytes::new(keys.py(), &partitions))
}

/// Consumer indexes of an Arrow text column: 32-bit offsets where each value begins in `text` and
/// the last one ends.
#[pyfunction]
pub(crate) fn text_partitions<'py>(
    py: Python<'py>,
    ends: &Bound<'py, PyAny>,
    text: &Bound<'py, PyAny>,
    consumers: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let (ends, text) = (payload::read_payload(ends)?, payload::read_payload(text)?);
    let partitions = py
        // A column may hold millions of values; other Python threads run meanwhile.
        .detach(|| partition_text(&ends, &text, consumers))
        .ok_or_else(|| value_error("invalid text column: wrong offsets or not UTF-8"))?;
    Ok(PyBytes::new(py, &partitions))
}

/// Consumer indexes of an Arrow column of 64-bit integers.
#[pyfunction]
pub(crate) fn integer_partitions<'py>(
    py: Python<'py>,
    numbers: &Bound<'py, PyAny>,
    consumers: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let numbers = payload::read_payload(numbers)?;
    let partitions = py.detach(|| partition_integers(&numbers, consumers));
    Ok(PyBytes::new(py, &partitions))
}

fn partition_integers(numbers: &[u8], consumers: usize) -> Vec<u8> {
    let (numbers, _) = numbers.as_chunks::<8>();
    let (mut buffer, mut partitions) = (Vec::new(), Vec::with_capacity(numbers.len() * 4));
    for number in numbers {
        buffer.clear();
        // Encoded like a Python integer, so that both give a key the same consumer.
        value::write_token(&mut buffer, ValueToken::Int(i64::from_ne_bytes(*number)));
        partitions
            .extend_from_slice(&(value::key_partition(&buffer, consumers) as u32).to_ne_bytes());
    }
    partitions
}

fn partition_text(ends: &[u8], text: &[u8], consumers: usize) -> Option<Vec<u8>> {
    let offset = |bytes: &[u8; 4]| usize::try_from(i32::from_ne_bytes(*bytes)).ok();
    // Arrow's buffers may be padded at the end.
    let (ends, _) = ends.as_chunks::<4>();
    let (mut buffer, mut partitions) = (Vec::new(), Vec::with_capacity(ends.len() * 4));
    for pair in ends.windows(2) {
        let value = text.get(offset(&pair[0])?..offset(&pair[1])?)?;
        buffer.clear();
        // Encoded like a Python string, so that both give a key the same consumer.
        value::write_token(&mut buffer, ValueToken::Text(str::from_utf8(value).ok()?));
        partitions
            .extend_from_slice(&(value::key_partition(&buffer, consumers) as u32).to_ne_bytes());
    }
    Some(partitions)
}

pub(super) fn write_item(buffer: &mut Vec<u8>, item: &Bound<'_, PyAny>) -> PyResult<()> {
    put_item(buffer, item, Encoding::UNBOUNDED, 0)
}

/// Writes an item for a stream, whose frames have a limit.
pub(super) fn write_streamed_item(buffer: &mut Vec<u8>, item: &Bound<'_, PyAny>) -> PyResult<()> {
    let encoding = Encoding {
        max_bytes: MAX_PAYLOAD_BYTES,
        ..Encoding::UNBOUNDED
    };
    let before = buffer.len();
    // A part of an item must not stay in the batch of others.
    put_item(buffer, item, encoding, 0).inspect_err(|_| buffer.truncate(before))
}

pub(super) fn write_key(buffer: &mut Vec<u8>, key: &Bound<'_, PyAny>) -> PyResult<()> {
    let encoding = Encoding {
        form: ValueForm::Key,
        ..Encoding::UNBOUNDED
    };
    put_item(buffer, key, encoding, 0)
}

/// Returns true if a key is encoded like any other value.
pub(super) fn is_simple(key: &Bound<'_, PyAny>) -> bool {
    key.is_exact_instance_of::<PyString>()
        || key.is_exact_instance_of::<PyInt>()
        || key.is_exact_instance_of::<PyBytes>()
}

fn put_item(
    buffer: &mut Vec<u8>,
    item: &Bound<'_, PyAny>,
    encoding: Encoding,
    depth: usize,
) -> PyResult<()> {
    // Exact types only: a subclass would lose its type when it is decoded. Common types first.
    if let Ok(text) = item.cast_exact::<PyString>() {
        let text = text.to_str()?;
        encoding.check_size(buffer.len() + text.len())?;
        value::write_token(buffer, ValueToken::Text(text));
    } else if let Ok(int) = item.cast_exact::<PyInt>() {
        put_int(buffer, int)?;
    } else if let Ok(float) = item.cast_exact::<PyFloat>() {
        put_float(buffer, float, encoding)?;
    } else if let Ok(bytes) = item.cast_exact::<PyBytes>() {
        encoding.check_size(buffer.len() + bytes.as_bytes().len())?;
        value::write_token(buffer, ValueToken::Bytes(bytes.as_bytes()));
    } else if item.is_none() {
        value::write_token(buffer, ValueToken::Null);
    } else if let Ok(bool) = item.cast_exact::<PyBool>() {
        let token = if encoding.form == ValueForm::Key {
            ValueToken::Int(bool.is_true().into())
        } else {
            ValueToken::Bool(bool.is_true())
        };
        value::write_token(buffer, token);
    } else {
        return put_container(buffer, item, encoding, depth);
    }
    Ok(())
}

fn put_int(buffer: &mut Vec<u8>, int: &Bound<'_, PyInt>) -> PyResult<()> {
    // Most integers fit; larger ones take the slower path through Python.
    if let Ok(small) = int.extract::<i64>() {
        value::write_token(buffer, ValueToken::Int(small));
        return Ok(());
    }
    let bits: usize = int.call_method0("bit_length")?.extract()?;
    let signed = PyDict::new(int.py());
    signed.set_item("signed", true)?;
    // Two's complement, so that the sign survives.
    let bytes = int.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&signed))?;
    value::write_token(
        buffer,
        ValueToken::BigInt(bytes.cast::<PyBytes>()?.as_bytes()),
    );
    Ok(())
}

fn put_float(buffer: &mut Vec<u8>, float: &Bound<'_, PyFloat>, encoding: Encoding) -> PyResult<()> {
    let number: f64 = float.extract()?;
    if encoding.form == ValueForm::Key && number.fract() == 0.0 {
        // Python's hash and equality treat 1.0 and 1 as one key.
        return put_int(buffer, float.call_method0("__int__")?.cast::<PyInt>()?);
    }
    value::write_token(buffer, ValueToken::Float(number));
    Ok(())
}

fn put_container(
    buffer: &mut Vec<u8>,
    item: &Bound<'_, PyAny>,
    encoding: Encoding,
    depth: usize,
) -> PyResult<()> {
    encoding.check_size(buffer.len())?;
    // Bounded, because decoding recurses as deep.
    if depth == MAX_NESTING_DEPTH {
        return Err(PyValueError::new_err(format!(
            "an item is nested deeper than {MAX_NESTING_DEPTH} levels: make it flatter"
        )));
    }
    if let Ok(tuple) = item.cast_exact::<PyTuple>() {
        value::write_token(buffer, ValueToken::Tuple(tuple.len()));
        return tuple
            .iter()
            .try_for_each(|part| put_item(buffer, &part, encoding, depth + 1));
    }
    if let Ok(list) = item.cast_exact::<PyList>() {
        // A list may change its length while it is iterated.
        let parts: Vec<_> = list.iter().collect();
        value::write_token(buffer, ValueToken::List(parts.len()));
        return parts
            .iter()
            .try_for_each(|part| put_item(buffer, part, encoding, depth + 1));
    }
    if let Ok(map) = item.cast_exact::<PyDict>() {
        let parts: Vec<_> = map.iter().collect();
        value::write_token(buffer, ValueToken::Map(parts.len()));
        return parts.iter().try_for_each(|(key, part)| {
            put_item(buffer, key, encoding, depth + 1)?;
            put_item(buffer, part, encoding, depth + 1)
        });
    }
    if let Some(plain) = plain_form(item)? {
        return put_item(buffer, &plain, encoding, depth + 1);
    }
    if put_time(buffer, item, encoding)? {
        return Ok(());
    }
    let remedy = "is not a plain value: send None, bool, int, float, str, bytes, tuple, list, dict, date and datetime, or give the worker `serialise` and `deserialise`";
    Err(PyTypeError::new_err(format!(
        "{} {remedy}",
        item.get_type().qualname()?
    )))
}

/// Returns the plain value of a scalar of numpy, or the tuple of a named tuple. They arrive as
/// these.
fn plain_form<'py>(item: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if item.is_instance_of::<PyTuple>() && item.hasattr("_fields")? {
        let parts: Vec<_> = item.try_iter()?.collect::<PyResult<_>>()?;
        return Ok(Some(PyTuple::new(item.py(), parts)?.into_any()));
    }
    // Imported already where an item is of its type.
    if item
        .get_type()
        .module()
        .is_ok_and(|module| module == "numpy")
    {
        let scalar = item.py().import("numpy")?.getattr("generic")?;
        if item.is_instance(&scalar)? {
            return item.call_method0("item").map(Some);
        }
    }
    Ok(None)
}

/// Writes a date or a datetime of Python's own types; returns whether it was one.
fn put_time(buffer: &mut Vec<u8>, item: &Bound<'_, PyAny>, encoding: Encoding) -> PyResult<bool> {
    let module = item.py().import("datetime")?;
    let class = item.get_type();
    let is_datetime = class.is(&module.getattr("datetime")?);
    if !is_datetime && !class.is(&module.getattr("date")?) {
        return Ok(false);
    }
    let mut item = item.clone();
    // Python treats one moment as one key, whatever its offset.
    if encoding.form == ValueForm::Key && is_datetime && !item.getattr("tzinfo")?.is_none() {
        item = item.call_method1("astimezone", (module.getattr("timezone")?.getattr("utc")?,))?;
    }
    let text = item.call_method0("isoformat")?;
    let text = text.cast::<PyString>()?;
    let text = text.to_str()?;
    let token = match is_datetime {
        true => ValueToken::DateTime(text),
        false => ValueToken::Date(text),
    };
    value::write_token(buffer, token);
    Ok(true)
}

fn read_time<'py>(py: Python<'py>, class: &str, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("datetime")?.getattr(class)?;
    class.call_method1("fromisoformat", (text,))
}

fn read_item<'py>(
    py: Python<'py>,
    reader: &mut ValueReader<'_>,
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    // Checked again: the batch comes from another process.
    if depth > MAX_NESTING_DEPTH {
        return Err(value_error(format!(
            "a value is nested deeper than {MAX_NESTING_DEPTH} levels"
        )));
    }
    let token = reader.next_token().map_err(value_error)?;
    Ok(match token {
        ValueToken::Null => py.None().into_bound(py),
        ValueToken::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
        ValueToken::Int(value) => value.into_pyobject(py)?.into_any(),
        ValueToken::Float(value) => PyFloat::new(py, value).into_any(),
        ValueToken::Text(text) => PyString::new(py, text).into_any(),
        ValueToken::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        ValueToken::BigInt(bytes) => read_big_int(py, bytes)?,
        ValueToken::Tuple(count) => {
            PyTuple::new(py, read_items(py, reader, count, depth)?)?.into_any()
        }
        ValueToken::List(count) => {
            PyList::new(py, read_items(py, reader, count, depth)?)?.into_any()
        }
        ValueToken::Map(count) => {
            let map = PyDict::new(py);
            for _ in 0..count {
                let key = read_item(py, reader, depth + 1)?;
                map.set_item(key, read_item(py, reader, depth + 1)?)?;
            }
            map.into_any()
        }
        ValueToken::Date(text) => read_time(py, "date", text)?,
        ValueToken::DateTime(text) => read_time(py, "datetime", text)?,
    })
}

fn read_items<'py>(
    py: Python<'py>,
    reader: &mut ValueReader<'_>,
    count: usize,
    depth: usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    (0..count)
        .map(|_| read_item(py, reader, depth + 1))
        .collect()
}

fn read_big_int<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let signed = PyDict::new(py);
    signed.set_item("signed", true)?;
    py.get_type::<PyInt>().call_method(
        "from_bytes",
        (PyBytes::new(py, bytes), "little"),
        Some(&signed),
    )
}
