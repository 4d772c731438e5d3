//! The Rust part of `nearpath.dataflow`: graphs, streams, the default codec, checkpoints. Waiting
//! releases the interpreter's lock.

mod codec;
mod files;
mod heartbeat;
mod outbox;
mod remote_workers;
mod scale_out;
mod worker;

use std::path::PathBuf;

use nearpath_dataflow::graph::StageGraph;
use nearpath_dataflow::topology::{JobTopology, TopologyLimits};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// Adds the module `_nearpath.dataflow`.
pub(crate) fn add_module(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "dataflow")?;
    module.add_class::<worker::Listener>()?;
    module.add_class::<worker::Streams>()?;
    module.add(
        "PeerLostError",
        parent.py().get_type::<worker::PeerLostError>(),
    )?;
    module.add_class::<outbox::Outbox>()?;
    module.add_class::<files::Checkpoints>()?;
    module.add_class::<scale_out::ScaleOutDecisions>()?;
    module.add_class::<remote_workers::Authority>()?;
    module.add_class::<remote_workers::RendezvousConnection>()?;
    module.add_function(wrap_pyfunction!(
        remote_workers::read_rendezvous_key,
        &module
    )?)?;
    module.add_function(wrap_pyfunction!(remote_workers::issue_ticket, &module)?)?;
    module.add_function(wrap_pyfunction!(codec::encode, &module)?)?;
    module.add_function(wrap_pyfunction!(codec::decode, &module)?)?;
    module.add_function(wrap_pyfunction!(codec::key_partition, &module)?)?;
    module.add_function(wrap_pyfunction!(codec::key_partitions, &module)?)?;
    module.add_function(wrap_pyfunction!(codec::text_partitions, &module)?)?;
    module.add_function(wrap_pyfunction!(codec::integer_partitions, &module)?)?;
    module.add_function(wrap_pyfunction!(expand_graph, &module)?)?;
    module.add_function(wrap_pyfunction!(check_topology, &module)?)?;
    module.add_function(wrap_pyfunction!(render_graph, &module)?)?;
    module.add_function(wrap_pyfunction!(die_with_parent, &module)?)?;
    module.add_function(wrap_pyfunction!(heartbeat::start_heartbeat, &module)?)?;
    parent.add_submodule(&module)
}

fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn limits_with(fan_in: Option<usize>) -> TopologyLimits {
    let defaults = TopologyLimits::default();
    TopologyLimits {
        fan_in: fan_in.unwrap_or(defaults.fan_in),
        ..defaults
    }
}

/// Expands a graph to its workers; both are JSON.
#[pyfunction]
#[pyo3(signature = (graph, fan_in=None))]
fn expand_graph(graph: &str, fan_in: Option<usize>) -> PyResult<String> {
    let topology = StageGraph::from_json(graph)
        .map_err(value_error)?
        .expand(limits_with(fan_in))
        .map_err(value_error)?;
    serde_json::to_string(&topology).map_err(value_error)
}

/// Checks a topology and returns it with all defaults; raises ValueError if it cannot run.
#[pyfunction]
#[pyo3(signature = (topology, fan_in=None))]
fn check_topology(topology: &str, fan_in: Option<usize>) -> PyResult<String> {
    let topology = JobTopology::from_json(topology).map_err(value_error)?;
    topology
        .check_with(limits_with(fan_in))
        .map_err(value_error)?;
    serde_json::to_string(&topology).map_err(value_error)
}

/// Renders a graph as DOT or SVG.
#[pyfunction]
fn render_graph(graph: &str, format: &str) -> PyResult<String> {
    let graph = StageGraph::from_json(graph).map_err(value_error)?;
    graph.check().map_err(value_error)?;
    match format {
        "dot" => Ok(graph.to_dot()),
        "svg" => Ok(graph.to_svg()),
        other => Err(value_error(format!(
            "invalid picture format `{other}`: expected dot or svg"
        ))),
    }
}

/// Makes the kernel end this process with its parent (PR_SET_PDEATHSIG).
#[pyfunction]
fn die_with_parent(parent: i32) -> PyResult<()> {
    let signal = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(signal)
        .map_err(|error| PyOSError::new_err(error.to_string()))?;
    // Checked after the setting: the parent may have ended before, and then no signal comes.
    let current_parent = rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid);
    if current_parent == parent {
        Ok(())
    } else {
        Err(PyOSError::new_err(format!(
            "the parent process {parent} has ended"
        )))
    }
}

/// Converts a folder's path from text.
fn folder_path(text: &str) -> PathBuf {
    PathBuf::from(text)
}
