//! The local gateway of an instance that calls others, and environment variables of a chain's
//! instance.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;

use nearpath_types::{Eip, FunctionPolicy, FunctionSpec, policy};

use crate::machine::DISPATCH_PATH;

/// Address of the name `gateway` inside an instance that calls others. The gateway listens there; the
/// watchdog, where it calls others over QUIC. Not 127.0.0.1, where the tenant's own server may use the
/// port.
pub const LOCAL_GATEWAY_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The watchdog's variable.
const MAX_INFLIGHT: &str = "max_inflight";

/// Returns whether the watchdog uses shared memory for the tenant's code. Its variable
/// `shared_memory` turns that off; the watchdog reports invalid values.
pub fn uses_shared_memory(spec: &FunctionSpec) -> bool {
    !matches!(
        spec.env_vars.get("shared_memory").map(|text| text.trim()),
        Some("false" | "0")
    )
}

/// Returns the address of the gateway's listener inside an instance.
pub fn gateway_listener(gateway: SocketAddr) -> SocketAddrV4 {
    SocketAddrV4::new(LOCAL_GATEWAY_IP, gateway.port())
}

/// Returns the variable that tells the watchdog of the gateway's listener on the same port.
pub fn gateway_listener_variable(listener: SocketAddrV4) -> [(String, String); 1] {
    [("NEARPATH_GATEWAY_LISTENER".to_owned(), listener.to_string())]
}

/// Returns variables for an instance with a domain socket at `socket` on the host.
pub fn chain_variables(
    spec: &FunctionSpec,
    limits: &FunctionPolicy,
    socket: &Path,
    has_network: bool,
) -> Vec<(String, String)> {
    // A network of its own comes with a mount namespace, where the socket has a fixed path.
    let socket = if has_network {
        DISPATCH_PATH.to_owned()
    } else {
        socket.to_string_lossy().into_owned()
    };
    let mut variables = vec![("NEARPATH_DISPATCH".to_owned(), socket)];
    let call_limits = limit_variables(spec, limits).into_iter();
    variables
        .extend(call_limits.filter(|(name, _)| name != MAX_INFLIGHT || uses_shared_memory(spec)));
    variables
}

/// Returns limits for an instance that is called along edges, where no gateway enforces them.
pub fn limit_variables(spec: &FunctionSpec, limits: &FunctionPolicy) -> Vec<(String, String)> {
    // The tenant's own variable wins over the annotation.
    let is_unset = !spec.env_vars.contains_key(MAX_INFLIGHT)
        && spec.annotations.contains_key(policy::MAX_INFLIGHT);
    let inflight = limits
        .max_inflight
        .filter(|_| is_unset)
        .map(|calls| (MAX_INFLIGHT, calls.to_string()));
    let body = limits
        .max_body
        .map(|bytes| ("NEARPATH_MAX_BODY", bytes.to_string()));
    body.into_iter()
        .chain(inflight)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Returns variables for an instance whose watchdog takes its calls: its local gateway, the gateway's
/// address and its own.
pub fn watchdog_gateway_variables((eip, gateway): (Eip, SocketAddr)) -> [(String, String); 3] {
    let local_gateway = gateway_listener(gateway);
    let variables = [
        ("NEARPATH_PICKUP", local_gateway.to_string()),
        ("NEARPATH_GATEWAY", gateway.to_string()),
    ];
    let [local_gateway, gateway] = variables.map(|(name, value)| (name.to_owned(), value));
    [
        local_gateway,
        gateway,
        ("NEARPATH_EIP".to_owned(), eip.0.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables_of(variable: Option<(&str, &str)>, network: bool) -> Vec<(String, String)> {
        let mut spec = FunctionSpec::named("first".parse().unwrap());
        spec.env_vars
            .extend(variable.map(|(name, value)| (name.to_owned(), value.to_owned())));
        spec.annotations
            .insert(policy::MAX_INFLIGHT.into(), "3".into());
        let limits = FunctionPolicy {
            max_body: Some(10),
            ..FunctionPolicy::from_spec(&spec).unwrap()
        };
        chain_variables(&spec, &limits, Path::new("/data/socket"), network)
    }

    fn variable_names(variables: &[(String, String)]) -> Vec<&str> {
        variables.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn the_socket_and_both_gateway_addresses_are_set() {
        let mut variables = variables_of(None, true);
        let gateway = "10.62.0.1:8080".parse().unwrap();
        variables.extend(watchdog_gateway_variables((
            Eip([10, 62, 0, 9].into()),
            gateway,
        )));
        let value = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("NEARPATH_DISPATCH"), Some(DISPATCH_PATH));
        assert_eq!(value("NEARPATH_PICKUP"), Some("127.0.0.2:8080"));
        assert_eq!(value("NEARPATH_GATEWAY"), Some("10.62.0.1:8080"));
        assert_eq!(value("NEARPATH_EIP"), Some("10.62.0.9"));
        assert_eq!(
            (value("NEARPATH_MAX_BODY"), value("max_inflight")),
            (Some("10"), Some("3"))
        );
    }

    #[test]
    fn limits_are_the_watchdogs_only_where_it_uses_shared_memory() {
        assert_eq!(
            variable_names(&variables_of(None, false)),
            ["NEARPATH_DISPATCH", "NEARPATH_MAX_BODY", "max_inflight"]
        );
        assert_eq!(
            variable_names(&variables_of(Some(("shared_memory", "false")), true)),
            ["NEARPATH_DISPATCH", "NEARPATH_MAX_BODY"]
        );
        assert!(
            !variable_names(&variables_of(Some(("max_inflight", "9")), true))
                .contains(&"max_inflight"),
            "the tenant's own value is kept"
        );
    }
}
