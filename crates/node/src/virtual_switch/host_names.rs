//! Names of callees in the `/etc/hosts` of an instance. Pure.

use nearpath_kernel::sandbox::HostEntry;
use nearpath_types::{FunctionId, FunctionMap, FunctionPolicy, VirtualAddress};

/// Names that an instance has for others.
const RESERVED_NAMES: [&str; 2] = ["gateway", "localhost"];
/// Last label of a name with a namespace.
const SUFFIX: &str = "nearpath";

/// Returns the addresses of a function's declared callees, each with its names: `ratings` within its
/// namespace, `ratings.CHAIN` within its chain, `ratings.NAMESPACE.nearpath`, and aliases. Callees
/// without an address have none.
///
/// IPv4 comes first: clients that try addresses in order use it.
pub(crate) fn host_entries(
    id: &FunctionId,
    policy: &FunctionPolicy,
    addresses: &FunctionMap<VirtualAddress>,
) -> Vec<HostEntry> {
    let callees = policy.calls.iter();
    let known = callees.filter_map(|callee| Some((callee, addresses.get(callee)?)));
    known
        .flat_map(|(callee, address)| {
            let names = names_of(id, policy, callee);
            let entry = |address| HostEntry {
                address,
                names: names.clone(),
            };
            [entry(address.v4.into()), entry(address.v6.into())]
        })
        .collect()
}

fn names_of(id: &FunctionId, policy: &FunctionPolicy, callee: &FunctionId) -> Vec<String> {
    let name = callee.name.as_str();
    let mut names = vec![format!("{name}.{}.{SUFFIX}", callee.namespace)];
    if callee.namespace == id.namespace {
        if !RESERVED_NAMES.contains(&name) {
            // The shortest name is the canonical one.
            names.insert(0, name.to_owned());
        }
        names.extend(policy.chain.iter().map(|chain| format!("{name}.{chain}")));
    }
    let aliases = policy.aliases.iter().filter(|(_, meant)| meant == callee);
    let aliases = aliases.map(|(alias, _)| alias.name.as_str());
    names.extend(
        aliases
            .filter(|alias| !RESERVED_NAMES.contains(alias))
            .map(str::to_owned),
    );
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_id(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    fn addresses(names: &[&str]) -> FunctionMap<VirtualAddress> {
        let numbered = names.iter().zip(2..);
        let mut all = FunctionMap::default();
        for (name, number) in numbered {
            let address = VirtualAddress {
                v4: [10, 60, 0, number].into(),
                v6: format!("fd00::{number}").parse().unwrap(),
            };
            all.insert(function_id(name), address);
        }
        all
    }

    #[test]
    fn callees_are_named_in_every_way() {
        let policy = FunctionPolicy {
            chain: Some("shop".into()),
            calls: ["ratings", "auth.base", "absent", "gateway"]
                .map(function_id)
                .into(),
            aliases: vec![(function_id("stars"), function_id("ratings"))],
            ..FunctionPolicy::default()
        };
        let known = addresses(&["ratings", "auth.base", "gateway", "undeclared"]);
        let entries = host_entries(&function_id("reviews"), &policy, &known);
        let lines = entries
            .iter()
            .map(|entry| format!("{} {}", entry.address, entry.names.join(" ")));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            [
                "10.60.0.2 ratings ratings.openfaas-fn.nearpath ratings.shop stars",
                "fd00::2 ratings ratings.openfaas-fn.nearpath ratings.shop stars",
                "10.60.0.3 auth.base.nearpath",
                "fd00::3 auth.base.nearpath",
                "10.60.0.4 gateway.openfaas-fn.nearpath gateway.shop",
                "fd00::4 gateway.openfaas-fn.nearpath gateway.shop",
            ]
        );
    }
}
