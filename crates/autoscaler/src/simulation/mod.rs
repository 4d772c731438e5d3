//! A function under generated load, with a virtual clock and without sources of chance.
//!
//! [`FunctionModel`] has replicas that take time to start, and a queue. [`LoadTrace`] has the
//! requests of each second. [`simulate`] runs the autoscaler between both, and `oracle` knows the
//! trace in advance.

mod behaviour;
mod cost;
mod flapping;
mod function_model;
mod load_trace;
mod oracle;
mod properties;
mod random;
mod sim_run;

use function_model::FunctionModel;
use load_trace::LoadTrace;
use sim_run::{SimRun, simulate, simulate_sampled};
