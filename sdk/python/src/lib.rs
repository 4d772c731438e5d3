//! The native half of the SDK for Python; `nearpath/__init__.py` is what users import.
//!
//! A thread of Python is a party for threads that wait ([`nearpath::blocking`]); the interpreter's lock is let go of while it
//! waits. Bodies are views: memory of the slot for as long as Python looks at it. `unsafe` is only the buffer protocol, in
//! [`view`], [`buffer`] and [`payload`].
#![deny(unsafe_op_in_unsafe_fn)]

mod ask;
mod buffer;
mod dataflow;
mod error;
mod messages;
mod party;
mod payload;
mod serve;
mod stream;
mod view;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The module.
#[pymodule]
fn _nearpath(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<messages::Request>()?;
    module.add_class::<messages::Response>()?;
    module.add_class::<view::View>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<party::Published>()?;
    module.add_class::<stream::PartsOfRequest>()?;
    module.add_class::<stream::PartsOfResponse>()?;
    module.add("Error", module.py().get_type::<error::Error>())?;
    module.add_function(wrap_pyfunction!(party::buffer, module)?)?;
    module.add_function(wrap_pyfunction!(party::call, module)?)?;
    module.add_function(wrap_pyfunction!(party::call_later, module)?)?;
    module.add_function(wrap_pyfunction!(party::gather, module)?)?;
    module.add_function(wrap_pyfunction!(party::handed_on, module)?)?;
    module.add_function(wrap_pyfunction!(party::notify, module)?)?;
    module.add_function(wrap_pyfunction!(party::publish, module)?)?;
    module.add_function(wrap_pyfunction!(serve::serve, module)?)?;
    dataflow::add_to(module)?;
    let after = PyDict::new(module.py());
    after.set_item("after_in_child", wrap_pyfunction!(party::forked, module)?)?;
    module.py().import("os")?.call_method("register_at_fork", (), Some(&after)).map(drop)
}
