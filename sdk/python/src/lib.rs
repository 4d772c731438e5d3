//! The native half of the SDK for Python; `nearpath/__init__.py` is what users import.
//!
//! A thread of Python is a party for threads that wait ([`nearpath::blocking`]); the interpreter's lock is let go of while it
//! waits. Bodies are views: memory of the slot for as long as Python looks at it. `unsafe` is only the buffer protocol, in
//! [`view`], [`buffer`] and [`payload`].
#![deny(unsafe_op_in_unsafe_fn)]

mod buffer;
mod call_options;
mod calls;
mod dataflow;
mod error;
mod messages;
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
    module.add_class::<calls::Published>()?;
    module.add_class::<stream::RequestPartIterator>()?;
    module.add_class::<stream::ResponsePartIterator>()?;
    module.add("Error", module.py().get_type::<error::Error>())?;
    module.add_function(wrap_pyfunction!(calls::buffer, module)?)?;
    module.add_function(wrap_pyfunction!(calls::call, module)?)?;
    module.add_function(wrap_pyfunction!(calls::call_later, module)?)?;
    module.add_function(wrap_pyfunction!(calls::gather, module)?)?;
    module.add_function(wrap_pyfunction!(calls::handed_on, module)?)?;
    module.add_function(wrap_pyfunction!(calls::notify, module)?)?;
    module.add_function(wrap_pyfunction!(calls::publish, module)?)?;
    module.add_function(wrap_pyfunction!(serve::serve, module)?)?;
    dataflow::add_module(module)?;
    let after = PyDict::new(module.py());
    after.set_item("after_in_child", wrap_pyfunction!(calls::forked, module)?)?;
    module
        .py()
        .import("os")?
        .call_method("register_at_fork", (), Some(&after))
        .map(drop)
}
