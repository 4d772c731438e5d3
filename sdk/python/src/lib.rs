//! The native module of the SDK for Python; users import `nearpath/__init__.py`.
//!
//! A Python thread is an endpoint for blocking threads ([`nearpath::blocking`]), which releases the
//! interpreter's lock while it waits. Bodies are views: they keep their slot while Python refers to
//! them. Only the buffer protocol needs `unsafe`, in [`view`], [`buffer`] and [`payload`].
#![deny(unsafe_op_in_unsafe_fn)]

mod buffer;
mod call_options;
mod calls;
mod dataflow;
mod endpoint;
mod error;
mod messages;
mod payload;
mod serve;
mod stream;
mod view;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Defines the Python module.
#[pymodule]
fn _nearpath(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<messages::Request>()?;
    module.add_class::<messages::Response>()?;
    module.add_class::<view::View>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<calls::Published>()?;
    module.add_class::<messages::RequestPartIterator>()?;
    module.add_class::<messages::ResponsePartIterator>()?;
    module.add("Error", module.py().get_type::<error::Error>())?;
    module.add_function(wrap_pyfunction!(calls::buffer, module)?)?;
    module.add_function(wrap_pyfunction!(calls::call, module)?)?;
    module.add_function(wrap_pyfunction!(calls::call_later, module)?)?;
    module.add_function(wrap_pyfunction!(calls::gather, module)?)?;
    module.add_function(wrap_pyfunction!(calls::propagated_fields, module)?)?;
    module.add_function(wrap_pyfunction!(calls::notify, module)?)?;
    module.add_function(wrap_pyfunction!(calls::publish, module)?)?;
    module.add_function(wrap_pyfunction!(serve::serve, module)?)?;
    dataflow::add_module(module)?;
    let hooks = PyDict::new(module.py());
    hooks.set_item(
        "after_in_child",
        wrap_pyfunction!(endpoint::reset_after_fork, module)?,
    )?;
    module
        .py()
        .import("os")?
        .call_method("register_at_fork", (), Some(&hooks))
        .map(drop)
}
