//! What an instance of a chain is told besides: the door to its domain, and where calls to other functions are picked up.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use nearpath_types::{Eip, FunctionSpec, Policy, policy};

use crate::machine::DISPATCH;

/// What the name `gateway` means in an instance of a chain: the watchdog listens there. Not 127.0.0.1, where the tenant's
/// own server may have the port.
pub const PICKUP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The watchdog's own variable.
const MAX_INFLIGHT: &str = "max_inflight";

/// Whether the watchdog takes part for the tenant's code: unless its variable `shared_memory` says no. What cannot be read
/// is the watchdog's to complain about.
pub fn takes_part(spec: &FunctionSpec) -> bool {
    !matches!(spec.env_vars.get("shared_memory").map(|text| text.trim()), Some("false" | "0"))
}

/// Variables for an instance with a door at `door` on the host. `network` is its address and the gateway's, where it has a
/// network of its own; elsewhere nothing is picked up, because its loopback is everybody's.
pub fn variables(
    spec: &FunctionSpec,
    limits: &Policy,
    door: &Path,
    network: Option<(Eip, SocketAddr)>,
) -> Vec<(String, String)> {
    let door = if network.is_some() { DISPATCH.to_owned() } else { door.to_string_lossy().into_owned() };
    let mut all = vec![("NEARPATH_DISPATCH".to_owned(), door)];
    let of_calls = limited(spec, limits).into_iter();
    all.extend(of_calls.filter(|(name, _)| name != MAX_INFLIGHT || takes_part(spec)));
    all.extend(network.filter(|_| takes_part(spec)).into_iter().flat_map(picked_up));
    all
}

/// Variables for an instance that is called along edges: such calls pass no gateway that would keep these limits.
pub fn limited(spec: &FunctionSpec, limits: &Policy) -> Vec<(String, String)> {
    let unsaid = !spec.env_vars.contains_key(MAX_INFLIGHT) && spec.annotations.contains_key(policy::MAX_INFLIGHT);
    let inflight = limits.max_inflight.filter(|_| unsaid).map(|calls| (MAX_INFLIGHT, calls.to_string()));
    let body = limits.max_body.map(|bytes| ("NEARPATH_MAX_BODY", bytes.to_string()));
    body.into_iter().chain(inflight).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Variables for an instance whose calls are picked up: where that is, and the gateway's address and its own.
pub fn picked_up((eip, gateway): (Eip, SocketAddr)) -> [(String, String); 3] {
    let pickup = SocketAddr::from((PICKUP, gateway.port()));
    let all = [("NEARPATH_PICKUP", pickup.to_string()), ("NEARPATH_GATEWAY", gateway.to_string())];
    let [pickup, gateway] = all.map(|(name, value)| (name.to_owned(), value));
    [pickup, gateway, ("NEARPATH_EIP".to_owned(), eip.0.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(variable: Option<(&str, &str)>, network: bool) -> Vec<(String, String)> {
        let mut spec = FunctionSpec::named("first".parse().unwrap());
        spec.env_vars.extend(variable.map(|(name, value)| (name.to_owned(), value.to_owned())));
        spec.annotations.insert(policy::MAX_INFLIGHT.into(), "3".into());
        let network = network.then(|| (Eip([10, 62, 0, 9].into()), "10.62.0.1:8080".parse().unwrap()));
        let limits = Policy { max_body: Some(10), ..Policy::of(&spec).unwrap() };
        variables(&spec, &limits, Path::new("/data/door"), network)
    }

    fn names(told: &[(String, String)]) -> Vec<&str> {
        told.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn the_door_and_the_two_addresses_of_the_gateway() {
        let told = told(None, true);
        let value = |name: &str| told.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!(value("NEARPATH_DISPATCH"), Some(DISPATCH));
        assert_eq!(value("NEARPATH_PICKUP"), Some("127.0.0.2:8080"));
        assert_eq!(value("NEARPATH_GATEWAY"), Some("10.62.0.1:8080"));
        assert_eq!(value("NEARPATH_EIP"), Some("10.62.0.9"));
        assert_eq!((value("NEARPATH_MAX_BODY"), value("max_inflight")), (Some("10"), Some("3")));
    }

    #[test]
    fn without_a_network_or_a_wish_nothing_is_picked_up() {
        assert_eq!(names(&told(None, false)), ["NEARPATH_DISPATCH", "NEARPATH_MAX_BODY", "max_inflight"]);
        assert_eq!(names(&told(Some(("shared_memory", "false")), true)), ["NEARPATH_DISPATCH", "NEARPATH_MAX_BODY"]);
        assert!(!names(&told(Some(("max_inflight", "9")), true)).contains(&"max_inflight"), "the tenant's own counts");
    }
}
