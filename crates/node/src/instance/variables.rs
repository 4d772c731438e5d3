//! The environment of an instance, and the variables that the node itself reads.
//!
//! Nothing of the node's own environment is inherited. The tenant may set everything except names
//! that make the instance reachable or carry its identity.

use std::collections::BTreeMap;
use std::time::Duration;

use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionPolicy, FunctionSpec, duration};

/// Port of the watchdog in an instance with a network of its own.
pub const WATCHDOG_PORT: u16 = 8080;

/// Announces an identity to the watchdog, which is not called before it arrives.
pub const IDENTITY_VARIABLE: (&str, &str) = ("NEARPATH_IDENTITY", "awaited");
/// Protocol that callers use.
const TRANSPORT_VARIABLE: &str = "NEARPATH_TRANSPORT";

/// Default search path for programs.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Minimum of the watchdog's stall timeouts, unless the tenant sets them.
const MIN_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Ports of an instance that shares the machine's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopbackPorts {
    /// Port of the watchdog.
    pub watchdog: u16,
    /// Port of the tenant's server.
    pub upstream: u16,
}

/// Builds the environment.
///
/// `policy` is the function's last valid one. `shared` is set for an instance on the machine's network, `tmp` is its temporary folder, and
/// `gateway_url` its URL for calls.
///
/// # Errors
/// Fails for names or values that no process can get; the text names them.
pub fn build_environment(
    (spec, policy): (&FunctionSpec, &FunctionPolicy),
    shared: Option<LoopbackPorts>,
    tmp: &str,
    gateway_url: &str,
) -> Result<BTreeMap<String, String>, String> {
    let home = if shared.is_some() { tmp } else { "/home/app" };
    let mut all = default_variables(home, tmp, gateway_url);
    for (name, value) in &spec.env_vars {
        // execve(2) takes NAME=VALUE texts that end at NUL: others would be cut or misread.
        check_variable(name, value)?;
        all.insert(name.clone(), value.clone());
    }
    if !spec.env_process.is_empty() {
        check_variable("fprocess", &spec.env_process)?;
        all.insert("fprocess".to_owned(), spec.env_process.clone());
        all.remove("function_process"); // the watchdog prefers this older name
    }
    for (name, limit) in watchdog_limits(policy) {
        let value = all.entry(name.to_owned()).or_default();
        // An empty text means "unset" to the watchdog, as in OpenFaaS.
        if value.is_empty() {
            *value = duration::format_duration(limit);
        }
    }
    // Reserved names come last, so that a tenant cannot set them.
    all.retain(|name, _| !name.starts_with("NEARPATH_"));
    all.extend(fixed_variables(spec, shared));
    Ok(all)
}

/// Returns additional variables of an instance with an identity.
pub fn identity_variables(transport: CallTransport) -> [(String, String); 2] {
    let identity = (
        IDENTITY_VARIABLE.0.to_owned(),
        IDENTITY_VARIABLE.1.to_owned(),
    );
    [
        identity,
        (TRANSPORT_VARIABLE.to_owned(), transport.to_string()),
    ]
}

fn default_variables(home: &str, tmp: &str, gateway_url: &str) -> BTreeMap<String, String> {
    let defaults = [
        ("PATH", DEFAULT_PATH),
        ("HOME", home),
        ("LANG", "C.UTF-8"),
        ("TMPDIR", tmp),
        ("gateway_url", gateway_url),
        // the node withdraws an instance before it stops it, so no delay is needed
        ("healthcheck_interval", "0s"),
    ];
    defaults
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// Returns watchdog limits that the tenant leaves open. They follow `nearpath.io/total-timeout` and
/// are never shorter than the gateway's.
fn watchdog_limits(policy: &FunctionPolicy) -> [(&'static str, Duration); 3] {
    let stall_timeout = policy.total_timeout.max(MIN_STALL_TIMEOUT);
    [
        ("exec_timeout", policy.total_timeout),
        ("read_timeout", stall_timeout),
        ("write_timeout", stall_timeout),
    ]
}

fn fixed_variables(spec: &FunctionSpec, shared: Option<LoopbackPorts>) -> Vec<(String, String)> {
    let mut fixed = vec![
        ("OPENFAAS_NAME", spec.service.to_string()),
        ("OPENFAAS_NAMESPACE", spec.namespace.to_string()),
        ("suppress_lock", "true".to_owned()), // readiness is reported through the notes pipe
    ];
    match shared {
        None => fixed.push(("port", WATCHDOG_PORT.to_string())),
        Some(ports) => fixed.extend([
            ("port", ports.watchdog.to_string()),
            // On a shared network the watchdog would otherwise be open to other machines.
            ("bind_address", "127.0.0.1".to_owned()),
            // Instances share the machine's ports, so no fixed one is free for all.
            ("metrics_port", "0".to_owned()),
            ("PORT", ports.upstream.to_string()),
            (
                "upstream_url",
                format!("http://127.0.0.1:{}", ports.upstream),
            ),
        ]),
    }
    fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn check_variable(name: &str, value: &str) -> Result<(), String> {
    match name {
        _ if name.is_empty() || name.contains(['=', '\0']) => Err(format!(
            "environment variable name {name:?} is invalid: rename it in `environment`"
        )),
        _ if value.contains('\0') => Err(format!(
            "environment variable {name} contains a NUL byte: remove it"
        )),
        _ => Ok(()),
    }
}

/// Returns the maximum time to stop after SIGTERM: the watchdog's own limits and one second.
pub fn stop_timeout(spec: &FunctionSpec, policy: &FunctionPolicy) -> Duration {
    let variable = |name, default| duration_variable(spec, name).unwrap_or(default);
    let [.., (write_timeout, stall_timeout)] = watchdog_limits(policy);
    // The same sum as in the watchdog; see its shutdown sequence.
    let drain =
        variable("healthcheck_interval", Duration::ZERO) + variable(write_timeout, stall_timeout);
    drain + variable("stop_grace", Duration::from_secs(2)) + Duration::from_secs(1)
}

/// Returns the maximum time to become ready. The watchdog gives up slightly earlier and explains
/// why.
pub fn start_timeout(spec: &FunctionSpec) -> Duration {
    let value = duration_variable(spec, "start_timeout")
        .filter(|limit| !limit.is_zero())
        .unwrap_or(Duration::from_secs(30));
    value + Duration::from_secs(10)
}

/// Returns a duration from the tenant's variables. The watchdog reports invalid ones.
fn duration_variable(spec: &FunctionSpec, name: &str) -> Option<Duration> {
    spec.env_vars
        .get(name)
        .and_then(|text| duration::parse_duration(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GATEWAY: &str = "http://gateway:8080";

    fn spec_with(variables: &[(&str, &str)]) -> FunctionSpec {
        let mut spec = FunctionSpec::named("echo".parse().unwrap());
        spec.env_vars = variables
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        spec
    }

    fn policy_of(spec: &FunctionSpec) -> FunctionPolicy {
        FunctionPolicy::from_spec(spec).unwrap()
    }

    fn build_for(
        spec: &FunctionSpec,
        shared: Option<LoopbackPorts>,
        tmp: &str,
        gateway_url: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        build_environment((spec, &policy_of(spec)), shared, tmp, gateway_url)
    }

    fn stop_time(spec: &FunctionSpec) -> Duration {
        stop_timeout(spec, &policy_of(spec))
    }

    #[test]
    fn tenants_cannot_set_reserved_variables() {
        let spec = spec_with(&[
            ("PATH", "/opt"),
            ("port", "1"),
            ("OPENFAAS_NAME", "root"),
            ("NEARPATH_NOTES_FD", "1"),
        ]);
        let all = build_for(&spec, None, "/tmp", GATEWAY).unwrap();
        assert_eq!(all["PATH"], "/opt");
        assert_eq!(all["port"], "8080");
        assert_eq!(all["OPENFAAS_NAME"], "echo");
        assert!(!all.contains_key("NEARPATH_NOTES_FD"));
    }

    #[test]
    fn the_gateway_url_is_set_unless_the_tenant_sets_it() {
        assert_eq!(
            build_for(&spec_with(&[]), None, "/tmp", GATEWAY).unwrap()["gateway_url"],
            GATEWAY
        );
        let spec = spec_with(&[("gateway_url", "http://10.0.0.9")]);
        assert_eq!(
            build_for(&spec, None, "/tmp", GATEWAY).unwrap()["gateway_url"],
            "http://10.0.0.9"
        );
    }

    #[test]
    fn env_process_wins_over_both_names_of_the_variable() {
        let mut spec = spec_with(&[("function_process", "old"), ("fprocess", "older")]);
        spec.env_process = "python3 handler.py".to_owned();
        let all = build_for(&spec, None, "/tmp", GATEWAY).unwrap();
        assert_eq!(all["fprocess"], "python3 handler.py");
        assert!(!all.contains_key("function_process"));
    }

    #[test]
    fn a_shared_network_moves_every_port() {
        let ports = LoopbackPorts {
            watchdog: 4_001,
            upstream: 4_002,
        };
        let all = build_for(
            &spec_with(&[("upstream_url", "http://127.0.0.1:5000")]),
            Some(ports),
            "/x",
            GATEWAY,
        )
        .unwrap();
        assert_eq!(
            (&*all["port"], &*all["PORT"], &*all["metrics_port"]),
            ("4001", "4002", "0")
        );
        assert_eq!(all["upstream_url"], "http://127.0.0.1:4002");
        assert_eq!(all["HOME"], "/x", "there is no /home/app");
    }

    #[test]
    fn timeouts_follow_the_watchdogs_variables() {
        assert_eq!(stop_time(&spec_with(&[])), Duration::from_secs(63));
        let slow = spec_with(&[
            ("write_timeout", "2m"),
            ("healthcheck_interval", "5"),
            ("stop_grace", "0"),
        ]);
        assert_eq!(stop_time(&slow), Duration::from_secs(126));
        assert_eq!(
            stop_time(&spec_with(&[("write_timeout", "soon")])),
            Duration::from_secs(63)
        );
        assert_eq!(
            start_timeout(&spec_with(&[("start_timeout", "5s")])),
            Duration::from_secs(15)
        );
    }

    #[test]
    fn the_watchdog_never_undercuts_the_limits_of_the_function() {
        let limits = |spec: &FunctionSpec| {
            let all = build_for(spec, None, "/tmp", GATEWAY).unwrap();
            ["exec_timeout", "read_timeout", "write_timeout"].map(|name| all[name].clone())
        };
        assert_eq!(
            limits(&spec_with(&[])),
            ["60s", "60s", "60s"],
            "the documented default"
        );
        let total = |text: &str, variables| {
            let annotations = [("nearpath.io/total-timeout".to_owned(), text.to_owned())].into();
            FunctionSpec {
                annotations,
                ..spec_with(variables)
            }
        };
        assert_eq!(limits(&total("5m", &[])), ["300s", "300s", "300s"]);
        assert_eq!(limits(&total("1500ms", &[])), ["1500ms", "30s", "30s"]);
        assert_eq!(
            limits(&total("5m", &[("exec_timeout", "0"), ("read_timeout", "")])),
            ["0", "300s", "300s"]
        );
        assert_eq!(
            limits(&total(
                "5m",
                &[("exec_timeout", "7"), ("write_timeout", "1s")]
            )),
            ["7", "300s", "1s"]
        );
        assert_eq!(
            stop_time(&total("5m", &[])),
            Duration::from_secs(303),
            "open requests may take as long"
        );
    }

    proptest! {
        #[test]
        fn every_accepted_environment_is_valid_for_exec(name in "\\PC{0,5}|.{0,3}\0", value in ".{0,5}|a\0") {
            if let Ok(all) = build_for(&spec_with(&[(&name, &value)]), None, "/tmp", GATEWAY) {
                prop_assert!(all.iter().all(|(name, value)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')));
            }
        }
    }
}
