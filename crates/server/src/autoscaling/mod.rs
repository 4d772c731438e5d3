//! Drives the autoscalers of this node's functions.
//!
//! [`ScaleState`] is pure: the desired state of the controller, an autoscaler for each function that
//! requests one, and the desired state with their replicas, which the node gets. Nothing of it is
//! stored. [`ScaleDriver`] reads the load of functions that are awake. It has no timer while nothing
//! can change: the gateway notifies it of the next request.

mod driver;
mod function_scaler;
mod handle;
mod load_counts;
mod load_reader;
mod metrics;
mod scale_state;

pub(crate) use driver::ScaleDriver;
pub(crate) use handle::AutoscalerHandle;
pub(crate) use load_reader::LoadReader;
pub(crate) use metrics::register_collector;
