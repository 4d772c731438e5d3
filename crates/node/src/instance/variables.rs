//! The environment of an instance, and the few of its variables that the node itself obeys.
//!
//! It starts clean: nothing of the node's own environment gets in. The tenant may set everything but the names that make
//! the instance reachable and tell it who it is.

use std::collections::BTreeMap;
use std::time::Duration;

use nearpath_types::policy::Transport;
use nearpath_types::{FunctionSpec, Policy, duration};

/// The port of the watchdog in an instance that has a network of its own.
pub const PORT: u16 = 8080;

/// Tells the watchdog that it will be told who it is, and is not to be called before.
pub const IDENTITY: (&str, &str) = ("NEARPATH_IDENTITY", "awaited");
/// Tells it what callers have to speak.
const TRANSPORT: &str = "NEARPATH_TRANSPORT";

/// Where an instance looks for programs, unless its tenant says otherwise.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The watchdog's limits of silence, where neither the tenant nor the function's own limits want another.
const SILENCE: Duration = Duration::from_secs(30);

/// What an instance without a network of its own must not share with the others on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopbackPorts {
    /// The watchdog's.
    pub watchdog: u16,
    /// That of the tenant's server.
    pub upstream: u16,
}

/// Builds the environment. `shared` is set when the instance has no network of its own; `tmp` is its temporary folder and
/// `gateway_url` tells it where to call other functions.
///
/// # Errors
/// When the tenant's variables hold a name or a value that no process can be given; the text names it.
pub fn environment(
    spec: &FunctionSpec,
    shared: Option<LoopbackPorts>,
    tmp: &str,
    gateway_url: &str,
) -> Result<BTreeMap<String, String>, String> {
    let home = if shared.is_some() { tmp } else { "/home/app" };
    let mut all = defaults(home, tmp, gateway_url);
    for (name, value) in &spec.env_vars {
        check(name, value)?;
        all.insert(name.clone(), value.clone());
    }
    if !spec.env_process.is_empty() {
        check("fprocess", &spec.env_process)?;
        all.insert("fprocess".to_owned(), spec.env_process.clone());
        all.remove("function_process"); // the watchdog prefers this older name
    }
    for (name, limit) in limits(spec) {
        let own = all.entry(name.to_owned()).or_default();
        if own.is_empty() {
            *own = duration::format(limit);
        }
    }
    all.retain(|name, _| !name.starts_with("NEARPATH_"));
    all.extend(fixed(spec, shared));
    Ok(all)
}

/// What an instance with an identity is told besides.
pub fn identity(transport: Transport) -> [(String, String); 2] {
    let awaited = (IDENTITY.0.to_owned(), IDENTITY.1.to_owned());
    [awaited, (TRANSPORT.to_owned(), transport.to_string())]
}

fn defaults(home: &str, tmp: &str, gateway_url: &str) -> BTreeMap<String, String> {
    let defaults = [
        ("PATH", PATH),
        ("HOME", home),
        ("LANG", "C.UTF-8"),
        ("TMPDIR", tmp),
        ("gateway_url", gateway_url),
        ("healthcheck_interval", "0s"), // the node withdraws an instance before it tells it to stop
    ];
    defaults.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Limits of the watchdog that the tenant leaves open follow `nearpath.io/total-timeout`: the gateway's limits rule, the
/// watchdog's are never shorter.
fn limits(spec: &FunctionSpec) -> [(&'static str, Duration); 3] {
    let policy = Policy::of(spec).unwrap_or_default(); // one that cannot be read is told elsewhere; its default holds
    let silence = policy.total_timeout.max(SILENCE);
    [("exec_timeout", policy.total_timeout), ("read_timeout", silence), ("write_timeout", silence)]
}

fn fixed(spec: &FunctionSpec, shared: Option<LoopbackPorts>) -> Vec<(String, String)> {
    let mut fixed = vec![
        ("OPENFAAS_NAME", spec.service.to_string()),
        ("OPENFAAS_NAMESPACE", spec.namespace.to_string()),
        ("suppress_lock", "true".to_owned()), // readiness is told through the notes pipe
    ];
    match shared {
        None => fixed.push(("port", PORT.to_string())),
        Some(ports) => fixed.extend([
            ("port", ports.watchdog.to_string()),
            ("bind_address", "127.0.0.1".to_owned()),
            ("metrics_port", "0".to_owned()),
            ("PORT", ports.upstream.to_string()),
            ("upstream_url", format!("http://127.0.0.1:{}", ports.upstream)),
        ]),
    }
    fixed.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn check(name: &str, value: &str) -> Result<(), String> {
    match name {
        _ if name.is_empty() || name.contains(['=', '\0']) => {
            Err(format!("the environment variable {name:?} has no valid name: rename it in `environment`"))
        }
        _ if value.contains('\0') => Err(format!("the environment variable {name} holds a zero byte: remove it")),
        _ => Ok(()),
    }
}

/// How long an instance may take to stop after SIGTERM: what its watchdog waits, and one second. Beyond it is killed.
pub fn stop_limit(spec: &FunctionSpec) -> Duration {
    let variable = |name, default| setting(spec, name).unwrap_or(default);
    let [.., (write_timeout, silence)] = limits(spec);
    let drain = variable("healthcheck_interval", Duration::ZERO) + variable(write_timeout, silence);
    drain + variable("stop_grace", Duration::from_secs(2)) + Duration::from_secs(1)
}

/// How long an instance may take to get ready. The watchdog gives up by itself a little earlier and says why.
pub fn start_limit(spec: &FunctionSpec) -> Duration {
    let own = setting(spec, "start_timeout").filter(|limit| !limit.is_zero()).unwrap_or(Duration::from_secs(30));
    own + Duration::from_secs(10)
}

/// A duration among the tenant's variables. One that cannot be read is the watchdog's to complain about.
fn setting(spec: &FunctionSpec, name: &str) -> Option<Duration> {
    spec.env_vars.get(name).and_then(|text| duration::parse(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GATEWAY: &str = "http://gateway:8080";

    fn spec(variables: &[(&str, &str)]) -> FunctionSpec {
        let mut spec = FunctionSpec::named("echo".parse().unwrap());
        spec.env_vars = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        spec
    }

    #[test]
    fn the_tenant_sets_all_but_what_makes_the_instance_reachable() {
        let spec = spec(&[("PATH", "/opt"), ("port", "1"), ("OPENFAAS_NAME", "root"), ("NEARPATH_NOTES_FD", "1")]);
        let all = environment(&spec, None, "/tmp", GATEWAY).unwrap();
        assert_eq!(all["PATH"], "/opt");
        assert_eq!(all["port"], "8080");
        assert_eq!(all["OPENFAAS_NAME"], "echo");
        assert!(!all.contains_key("NEARPATH_NOTES_FD"));
    }

    #[test]
    fn every_instance_is_told_the_gateway_unless_the_tenant_names_another() {
        assert_eq!(environment(&spec(&[]), None, "/tmp", GATEWAY).unwrap()["gateway_url"], GATEWAY);
        let own = spec(&[("gateway_url", "http://10.0.0.9")]);
        assert_eq!(environment(&own, None, "/tmp", GATEWAY).unwrap()["gateway_url"], "http://10.0.0.9");
    }

    #[test]
    fn env_process_wins_over_both_names_of_the_variable() {
        let mut spec = spec(&[("function_process", "old"), ("fprocess", "older")]);
        spec.env_process = "python3 handler.py".to_owned();
        let all = environment(&spec, None, "/tmp", GATEWAY).unwrap();
        assert_eq!(all["fprocess"], "python3 handler.py");
        assert!(!all.contains_key("function_process"));
    }

    #[test]
    fn a_shared_network_moves_every_port() {
        let ports = LoopbackPorts { watchdog: 4_001, upstream: 4_002 };
        let all = environment(&spec(&[("upstream_url", "http://127.0.0.1:5000")]), Some(ports), "/x", GATEWAY).unwrap();
        assert_eq!((&*all["port"], &*all["PORT"], &*all["metrics_port"]), ("4001", "4002", "0"));
        assert_eq!(all["upstream_url"], "http://127.0.0.1:4002");
        assert_eq!(all["HOME"], "/x", "there is no /home/app");
    }

    #[test]
    fn limits_follow_the_watchdogs_variables() {
        assert_eq!(stop_limit(&spec(&[])), Duration::from_secs(63));
        let slow = spec(&[("write_timeout", "2m"), ("healthcheck_interval", "5"), ("stop_grace", "0")]);
        assert_eq!(stop_limit(&slow), Duration::from_secs(126));
        assert_eq!(stop_limit(&spec(&[("write_timeout", "soon")])), Duration::from_secs(63));
        assert_eq!(start_limit(&spec(&[("start_timeout", "5s")])), Duration::from_secs(15));
    }

    #[test]
    fn the_watchdog_never_undercuts_the_limits_of_the_function() {
        let limits = |spec: &FunctionSpec| {
            let all = environment(spec, None, "/tmp", GATEWAY).unwrap();
            ["exec_timeout", "read_timeout", "write_timeout"].map(|name| all[name].clone())
        };
        assert_eq!(limits(&spec(&[])), ["60s", "60s", "60s"], "the documented default");
        let total = |text: &str, variables| {
            let annotations = [("nearpath.io/total-timeout".to_owned(), text.to_owned())].into();
            FunctionSpec { annotations, ..spec(variables) }
        };
        assert_eq!(limits(&total("5m", &[])), ["300s", "300s", "300s"]);
        assert_eq!(limits(&total("1500ms", &[])), ["1500ms", "30s", "30s"]);
        assert_eq!(limits(&total("5m", &[("exec_timeout", "0"), ("read_timeout", "")])), ["0", "300s", "300s"]);
        assert_eq!(limits(&total("5m", &[("exec_timeout", "7"), ("write_timeout", "1s")])), ["7", "300s", "1s"]);
        assert_eq!(stop_limit(&total("5m", &[])), Duration::from_secs(303), "who may be answered is waited for");
    }

    proptest! {
        #[test]
        fn whatever_passes_can_be_given_to_a_process(name in "\\PC{0,5}|.{0,3}\0", value in ".{0,5}|a\0") {
            if let Ok(all) = environment(&spec(&[(&name, &value)]), None, "/tmp", GATEWAY) {
                prop_assert!(all.iter().all(|(name, value)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')));
            }
        }
    }
}
