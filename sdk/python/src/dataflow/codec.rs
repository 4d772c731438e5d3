//! The default codec: plain values of Python, and nothing that runs code when it is read.

use nearpath_dataflow::value::{self, DEEPEST, Reader, Token};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::wrong;
use crate::payload;

/// How values are written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// They come back as they are.
    Exact,
    /// Those that Python finds equal look alike: `True`, `1` and `1.0`.
    Key,
}

/// Items as one batch.
#[pyfunction]
pub(crate) fn encode<'py>(items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut buffer = Vec::new();
    for item in items.try_iter()? {
        write(&mut buffer, &item?)?;
    }
    Ok(PyBytes::new(items.py(), &buffer))
}

/// The items of a batch.
#[pyfunction]
pub(crate) fn decode<'py>(batch: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let bytes = payload::read(batch)?;
    let (items, mut reader) = (PyList::empty(batch.py()), Reader::new(&bytes));
    while !reader.is_empty() {
        items.append(read(batch.py(), &mut reader, 0)?)?;
    }
    Ok(items)
}

/// Which of so many consumers has that key.
#[pyfunction]
pub(crate) fn share(key: &Bound<'_, PyAny>, consumers: usize) -> PyResult<usize> {
    let mut buffer = Vec::new();
    write_key(&mut buffer, key)?;
    Ok(value::share(&buffer, consumers))
}

/// The same of many keys: a number of 32 bits each.
#[pyfunction]
pub(crate) fn shares<'py>(keys: &Bound<'py, PyList>, consumers: usize) -> PyResult<Bound<'py, PyBytes>> {
    let (mut buffer, mut shares) = (Vec::new(), Vec::with_capacity(keys.len() * 4));
    for key in keys.iter() {
        buffer.clear();
        write_key(&mut buffer, &key)?;
        shares.extend_from_slice(&(value::share(&buffer, consumers) as u32).to_ne_bytes());
    }
    Ok(PyBytes::new(keys.py(), &shares))
}

/// The same of a column of text, as Arrow lays it out: where each value begins in `text`, and where the last one ends, 32 bits each.
#[pyfunction]
pub(crate) fn text_shares<'py>(
    py: Python<'py>,
    ends: &Bound<'py, PyAny>,
    text: &Bound<'py, PyAny>,
    consumers: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let (ends, text) = (payload::read(ends)?, payload::read(text)?);
    let shares =
        py.detach(|| shares_of_text(&ends, &text, consumers)).ok_or_else(|| wrong("this is no column of text"))?;
    Ok(PyBytes::new(py, &shares))
}

fn shares_of_text(ends: &[u8], text: &[u8], consumers: usize) -> Option<Vec<u8>> {
    let place = |at: &[u8; 4]| usize::try_from(i32::from_ne_bytes(*at)).ok();
    let (ends, _) = ends.as_chunks::<4>();
    let (mut buffer, mut shares) = (Vec::new(), Vec::with_capacity(ends.len() * 4));
    for pair in ends.windows(2) {
        let value = text.get(place(&pair[0])?..place(&pair[1])?)?;
        buffer.clear();
        value::write(&mut buffer, Token::Text(str::from_utf8(value).ok()?));
        shares.extend_from_slice(&(value::share(&buffer, consumers) as u32).to_ne_bytes());
    }
    Some(shares)
}

pub(super) fn write(buffer: &mut Vec<u8>, item: &Bound<'_, PyAny>) -> PyResult<()> {
    put(buffer, item, Form::Exact, 0)
}

pub(super) fn write_key(buffer: &mut Vec<u8>, key: &Bound<'_, PyAny>) -> PyResult<()> {
    put(buffer, key, Form::Key, 0)
}

/// Whether a key is written as any value is.
pub(super) fn is_simple(key: &Bound<'_, PyAny>) -> bool {
    key.is_exact_instance_of::<PyString>()
        || key.is_exact_instance_of::<PyInt>()
        || key.is_exact_instance_of::<PyBytes>()
}

fn put(buffer: &mut Vec<u8>, item: &Bound<'_, PyAny>, form: Form, depth: usize) -> PyResult<()> {
    if let Ok(text) = item.cast_exact::<PyString>() {
        value::write(buffer, Token::Text(text.to_str()?));
    } else if let Ok(int) = item.cast_exact::<PyInt>() {
        put_int(buffer, int)?;
    } else if let Ok(float) = item.cast_exact::<PyFloat>() {
        put_float(buffer, float, form)?;
    } else if let Ok(bytes) = item.cast_exact::<PyBytes>() {
        value::write(buffer, Token::Bytes(bytes.as_bytes()));
    } else if item.is_none() {
        value::write(buffer, Token::Null);
    } else if let Ok(bool) = item.cast_exact::<PyBool>() {
        let token = if form == Form::Key { Token::Int(bool.is_true().into()) } else { Token::Bool(bool.is_true()) };
        value::write(buffer, token);
    } else {
        return put_many(buffer, item, form, depth);
    }
    Ok(())
}

fn put_int(buffer: &mut Vec<u8>, int: &Bound<'_, PyInt>) -> PyResult<()> {
    if let Ok(small) = int.extract::<i64>() {
        value::write(buffer, Token::Int(small));
        return Ok(());
    }
    let bits: usize = int.call_method0("bit_length")?.extract()?;
    let signed = PyDict::new(int.py());
    signed.set_item("signed", true)?;
    let bytes = int.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&signed))?;
    value::write(buffer, Token::Big(bytes.cast::<PyBytes>()?.as_bytes()));
    Ok(())
}

fn put_float(buffer: &mut Vec<u8>, float: &Bound<'_, PyFloat>, form: Form) -> PyResult<()> {
    let number: f64 = float.extract()?;
    if form == Form::Key && number.fract() == 0.0 {
        return put_int(buffer, float.call_method0("__int__")?.cast::<PyInt>()?);
    }
    value::write(buffer, Token::Float(number));
    Ok(())
}

fn put_many(buffer: &mut Vec<u8>, item: &Bound<'_, PyAny>, form: Form, depth: usize) -> PyResult<()> {
    if depth == DEEPEST {
        return Err(PyValueError::new_err(format!("an item is nested deeper than {DEEPEST}")));
    }
    if let Ok(tuple) = item.cast_exact::<PyTuple>() {
        value::write(buffer, Token::Tuple(tuple.len()));
        return tuple.iter().try_for_each(|part| put(buffer, &part, form, depth + 1));
    }
    if let Ok(list) = item.cast_exact::<PyList>() {
        let parts: Vec<_> = list.iter().collect(); // a list may change its length while it is walked through
        value::write(buffer, Token::List(parts.len()));
        return parts.iter().try_for_each(|part| put(buffer, part, form, depth + 1));
    }
    if let Ok(map) = item.cast_exact::<PyDict>() {
        let parts: Vec<_> = map.iter().collect();
        value::write(buffer, Token::Map(parts.len()));
        return parts.iter().try_for_each(|(key, part)| {
            put(buffer, key, form, depth + 1)?;
            put(buffer, part, form, depth + 1)
        });
    }
    let told = "is no plain value: send None, bool, int, float, str, bytes, tuple, list and dict, or give the worker `serialise` and `deserialise`";
    Err(PyTypeError::new_err(format!("{} {told}", item.get_type().qualname()?)))
}

fn read<'py>(py: Python<'py>, reader: &mut Reader<'_>, depth: usize) -> PyResult<Bound<'py, PyAny>> {
    if depth > DEEPEST {
        return Err(wrong("a value is nested too deep"));
    }
    let token = reader.token().map_err(wrong)?;
    Ok(match token {
        Token::Null => py.None().into_bound(py),
        Token::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
        Token::Int(value) => value.into_pyobject(py)?.into_any(),
        Token::Float(value) => PyFloat::new(py, value).into_any(),
        Token::Text(text) => PyString::new(py, text).into_any(),
        Token::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Token::Big(bytes) => big(py, bytes)?,
        Token::Tuple(count) => PyTuple::new(py, several(py, reader, count, depth)?)?.into_any(),
        Token::List(count) => PyList::new(py, several(py, reader, count, depth)?)?.into_any(),
        Token::Map(count) => {
            let map = PyDict::new(py);
            for _ in 0..count {
                let key = read(py, reader, depth + 1)?;
                map.set_item(key, read(py, reader, depth + 1)?)?;
            }
            map.into_any()
        }
    })
}

fn several<'py>(
    py: Python<'py>,
    reader: &mut Reader<'_>,
    count: usize,
    depth: usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    (0..count).map(|_| read(py, reader, depth + 1)).collect()
}

fn big<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let signed = PyDict::new(py);
    signed.set_item("signed", true)?;
    py.get_type::<PyInt>().call_method("from_bytes", (PyBytes::new(py, bytes), "little"), Some(&signed))
}
