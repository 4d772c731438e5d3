//! Status of a function in the API: desired state beside observed state.

use nearpath_types::status::{InstanceStatus, SpecFields, UsageStatus, rfc3339};
use nearpath_types::{
    AutoscalingStatus, FunctionStatus, InstanceState, ObservedFunction, ObservedInstance,
};

use crate::model::{AddressNumber, DeployedFunction};

/// Label that holds a function's own name.
const FUNCTION_LABEL: &str = "faas_function";

/// Builds a status. `observed` is `None` while the node does not know the function.
pub(crate) fn function_status(
    function: &DeployedFunction,
    address: Option<AddressNumber>,
    observed: Option<&ObservedFunction>,
    invocations: u64,
) -> FunctionStatus {
    let name = function.spec.service.to_string();
    let mut spec = SpecFields::from(&*function.spec);
    // OpenFaaS's providers add it; its connectors and dashboards select by it.
    spec.labels.insert(FUNCTION_LABEL.to_owned(), name.clone());
    FunctionStatus {
        name,
        spec,
        // OpenFaaS's JSON has a floating-point number here.
        invocation_count: invocations as f64,
        replicas: function.replicas.into(),
        available_replicas: observed.map_or(0, ObservedFunction::available_count),
        created_at: rfc3339::format_time(function.created_at),
        revision: function.revision.0,
        virtual_address: address.map(AddressNumber::ipv4),
        autoscaling: None,
        usage: None,
        not_ready_reason: observed.and_then(|observed| observed.start_failure.clone()),
        last_failure: observed.and_then(|observed| observed.last_failure.clone()),
        instances: Vec::new(),
        nodes: Vec::new(),
        missing_nodes: Vec::new(),
    }
}

/// Adds the state of the autoscaler, whose number of replicas counts.
pub(crate) fn with_autoscaling(
    status: FunctionStatus,
    autoscaling: Option<AutoscalingStatus>,
) -> FunctionStatus {
    let wanted = autoscaling.as_ref().map(|one| u64::from(one.replicas));
    FunctionStatus {
        replicas: wanted.unwrap_or(status.replicas),
        autoscaling,
        ..status
    }
}

/// Adds the fields that only `describe_function` shows.
pub(crate) fn with_details(
    status: FunctionStatus,
    observed: Option<&ObservedFunction>,
    usage: Option<UsageStatus>,
) -> FunctionStatus {
    let instances = observed
        .map(|observed| observed.instances.iter().map(instance_status).collect())
        .unwrap_or_default();
    FunctionStatus {
        instances,
        usage,
        ..status
    }
}

fn instance_status(observed: &ObservedInstance) -> InstanceStatus {
    let state = match observed.state {
        InstanceState::Starting => "starting",
        InstanceState::Ready => "ready",
        InstanceState::Draining => "draining",
        InstanceState::Frozen => "frozen",
    };
    InstanceStatus {
        id: observed.id.to_string(),
        state: state.to_owned(),
        addr: observed.addr.to_string(),
        revision: observed.revision.0,
        pid: observed.pid,
        start_ms: observed
            .start
            .iter()
            .map(|phase| (phase.name.clone(), phase.took.as_secs_f64() * 1e3))
            .collect(),
        ready_ms: observed.ready_after.map(|took| took.as_secs_f64() * 1e3),
    }
}
