//! Snapshots of fixed endpoints, for a gateway without a node or a controller.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use nearpath_types::policy::CallTransport;
use nearpath_types::{
    FunctionId, FunctionPolicy, FunctionRoute, InstanceAddr, InstanceId, InstanceLocality,
    InstanceRoute, InstanceState, RoutingSnapshot,
};

/// Reports a text that is not `NAME=ADDRESS:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid endpoint {text:?}: {why}; expected NAME=ADDRESS:PORT")]
pub struct BadEndpoint {
    text: String,
    why: String,
}

/// Parses `NAME[.NAMESPACE]=ADDRESS:PORT`, for example `echo=127.0.0.1:9000`.
///
/// # Errors
/// Returns [`BadEndpoint`] with the part that is wrong.
pub fn parse_endpoint(text: &str) -> Result<(FunctionId, SocketAddr), BadEndpoint> {
    let bad = |why: String| BadEndpoint {
        text: text.to_owned(),
        why,
    };
    let (name, addr) = text
        .split_once('=')
        .ok_or_else(|| bad("there is no '='".into()))?;
    let id = name
        .parse()
        .map_err(|error: nearpath_types::InvalidName| bad(error.to_string()))?;
    let addr = addr
        .parse()
        .map_err(|_| bad(format!("{addr:?} is no IP address with a port")))?;
    Ok((id, addr))
}

/// Builds a snapshot of ready endpoints. Endpoints with the same name are instances of one
/// function.
pub fn build_snapshot(
    endpoints: &[(FunctionId, SocketAddr)],
    policy: &FunctionPolicy,
) -> RoutingSnapshot {
    let mut functions: BTreeMap<&FunctionId, Vec<InstanceRoute>> = BTreeMap::new();
    for ((id, addr), number) in endpoints.iter().zip(1..) {
        let instance = InstanceRoute {
            id: InstanceId(number),
            addr: InstanceAddr(*addr),
            // Fixed endpoints use plain HTTP wherever they run.
            locality: InstanceLocality::SameNode,
            state: InstanceState::Ready,
            quic: None,
            transport: CallTransport::Auto,
            server: None,
        };
        functions.entry(id).or_default().push(instance);
    }
    let policy = Arc::new(policy.clone());
    let route = |(id, instances): (&FunctionId, Vec<InstanceRoute>)| FunctionRoute {
        address: None,
        id: id.clone(),
        policy: policy.clone(),
        replicas: u32::try_from(instances.len()).unwrap_or(u32::MAX),
        instances,
        runs_here: true,
        remotes: Vec::new(),
        start_failure: None,
    };
    RoutingSnapshot {
        version: 1,
        nodes: Arc::default(),
        functions: functions.into_iter().map(route).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_one_name_are_one_function() {
        let endpoints: Vec<_> = ["echo=127.0.0.1:1", "echo=127.0.0.1:2", "b.dev=[::1]:3"]
            .iter()
            .map(|text| parse_endpoint(text).unwrap())
            .collect();
        let snapshot = build_snapshot(&endpoints, &FunctionPolicy::default());
        let shape: Vec<_> = snapshot
            .functions
            .values()
            .map(|f| (f.id.to_string(), f.instances.len()))
            .collect();
        assert_eq!(
            shape,
            [("b.dev".to_owned(), 1), ("echo.openfaas-fn".to_owned(), 2)]
        );
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (text, why) in [
            ("echo", "no '='"),
            ("Echo=127.0.0.1:1", "function name"),
            ("echo=localhost:1", "no IP"),
        ] {
            assert!(
                parse_endpoint(text).unwrap_err().to_string().contains(why),
                "{text}"
            );
        }
    }
}
