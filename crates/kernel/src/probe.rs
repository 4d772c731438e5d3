//! Detection of kernel facilities: for `nearpath doctor` and for choosing an [`IsolationLevel`].

use std::fmt;
use std::io;
use std::path::Path;

use crate::cgroup::NodeCgroups;
use crate::sandbox::{IsolationLevel, namespaces_allowed};
use crate::seccomp::SeccompFilters;

/// A facility that instances need or can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapabilityFinding {
    /// Name of the facility.
    pub name: &'static str,
    /// Reason why it is unavailable; `None` if it is available.
    pub problem: Option<String>,
    /// Set for facilities that are used only on request.
    pub optional: bool,
    /// Consequence of its absence.
    pub impact: &'static str,
    /// Advice to an operator.
    pub remedy: &'static str,
}

/// Result of all probes. Displays one line per finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineCapabilities {
    /// The best available isolation.
    pub isolation: IsolationLevel,
    /// Findings, one per facility.
    pub findings: Vec<CapabilityFinding>,
}

const INSTANCE_NAMESPACES: i32 = libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC;

/// Tries everything that instances need, in child processes and threads that change nothing outside
/// themselves. For a moment, this process's cgroup has a program that touches only marked sockets.
pub fn probe_machine() -> MachineCapabilities {
    let (as_root, as_user) = try_namespaces();
    let isolation = choose_isolation(&as_root, &as_user);
    let mut findings = vec![root_finding(&as_root), user_namespace_finding(&as_user)];
    findings.extend([
        seccomp_finding(),
        usr_finding(),
        sockmap_finding(),
        loopback_finding(),
        switch_finding(),
        forwarding_finding(),
        listener_finding(),
        interception_finding(),
        window_finding(),
    ]);
    findings.extend(cgroup_findings());
    MachineCapabilities {
        isolation,
        findings,
    }
}

/// Returns [`MachineCapabilities::isolation`] alone, which takes about a millisecond.
// The remaining probes take longer, and the server needs only this at its start.
pub fn best_isolation() -> IsolationLevel {
    let (as_root, as_user) = try_namespaces();
    choose_isolation(&as_root, &as_user)
}

/// Tries to create namespaces as root, and in a user namespace.
fn try_namespaces() -> (io::Result<()>, io::Result<()>) {
    let as_user = namespaces_allowed(INSTANCE_NAMESPACES | libc::CLONE_NEWUSER)
        .and_then(|()| check_setfcap());
    (namespaces_allowed(INSTANCE_NAMESPACES), as_user)
}

/// Checks that this process may map its uid. Since Linux 5.12 root needs a capability for that
/// (`man 7 user_namespaces`).
fn check_setfcap() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, capabilities};
    let root = rustix::process::geteuid().is_root();
    match root
        && !capabilities(None)?
            .effective
            .contains(CapabilitySet::SETFCAP)
    {
        true => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "root needs CAP_SETFCAP to map its uid",
        )),
        false => Ok(()),
    }
}

/// Chooses the best isolation. Root in a container often may create a user namespace, and other
/// namespaces only inside it.
fn choose_isolation(as_root: &io::Result<()>, as_user: &io::Result<()>) -> IsolationLevel {
    match (as_root, as_user) {
        (Ok(()), _) if rustix::process::geteuid().is_root() => IsolationLevel::Root,
        (_, Ok(())) => IsolationLevel::UserNamespace,
        _ => IsolationLevel::None,
    }
}

impl CapabilityFinding {
    /// Returns whether the facility is available.
    pub fn is_available(&self) -> bool {
        self.problem.is_none()
    }
}

impl fmt::Display for CapabilityFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            None => write!(f, "yes  {}", self.name),
            Some(problem) => write!(
                f,
                "no   {}: {problem}; effect: {}; remedy: {}",
                self.name, self.impact, self.remedy
            ),
        }
    }
}

impl fmt::Display for MachineCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings
            .iter()
            .try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

fn root_finding(namespaces: &io::Result<()>) -> CapabilityFinding {
    let root = rustix::process::geteuid().is_root();
    let problem = if root {
        error_text(namespaces)
    } else {
        Some("not running as root".into())
    };
    CapabilityFinding {
        name: "namespaces as root",
        problem,
        optional: false,
        impact: "instances have no user of their own",
        remedy: if root {
            "give this root CAP_SYS_ADMIN and CAP_NET_ADMIN (a container: --privileged)"
        } else {
            "run `nearpath up` as root"
        },
    }
}

fn user_namespace_finding(namespaces: &io::Result<()>) -> CapabilityFinding {
    CapabilityFinding {
        name: "user namespaces",
        problem: error_text(namespaces),
        optional: false,
        impact: "no isolation without root",
        remedy: "set kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0 and \
                 user.max_user_namespaces above 0, or run as root",
    }
}

fn seccomp_finding() -> CapabilityFinding {
    let missing = (!Path::new("/proc/sys/kernel/seccomp").exists())
        .then(|| "this kernel was built without seccomp".to_owned());
    CapabilityFinding {
        name: "seccomp",
        problem: missing.or_else(|| {
            SeccompFilters::compile()
                .err()
                .map(|error| error.to_string())
        }),
        optional: false,
        impact: "no system call filter, so instances do not start",
        remedy: "use a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
    }
}

fn sockmap_finding() -> CapabilityFinding {
    CapabilityFinding {
        name: "descriptor delivery by sockmap",
        problem: error_text(&crate::bpf::check_sockmap_support()),
        optional: true,
        impact: "chains with `nearpath.io/delivery: sockmap` use HTTP",
        remedy: "run as root with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN, with a nearpath that was built with clang",
    }
}

fn loopback_finding() -> CapabilityFinding {
    CapabilityFinding {
        name: "function calls by sockmap",
        problem: error_text(&crate::bpf::LoopbackRedirect::check_support()),
        optional: true,
        impact: "functions with `nearpath.io/loopback: sockmap` are called over TCP",
        remedy: "run as root with CAP_BPF and CAP_NET_ADMIN, on a kernel that counts redirected bytes (FIONREAD) with cgroup v2, with a nearpath that was built with clang",
    }
}

fn switch_finding() -> CapabilityFinding {
    CapabilityFinding {
        name: "virtual addresses",
        problem: error_text(&crate::bpf::check_switch_support()),
        optional: true,
        impact: "functions call each other over HTTP at the gateway and through shared memory only, not by name with other protocols",
        remedy: "run as root with CAP_BPF and CAP_NET_ADMIN, on Linux 5.18 or later with cgroup v2, with a nearpath that was built with clang",
    }
}

fn forwarding_finding() -> CapabilityFinding {
    CapabilityFinding {
        name: "packet forwarding by BPF",
        problem: error_text(&crate::bpf::check_forwarding_support()),
        optional: true,
        impact: "`nearpath up --forward tc` does not start",
        remedy: "run as root with CAP_BPF and CAP_NET_ADMIN, on Linux 6.6 or later, with a nearpath that was built with clang",
    }
}

fn interception_finding() -> CapabilityFinding {
    CapabilityFinding {
        name: "socket interception",
        problem: error_text(&check_interception_support()),
        optional: true,
        impact: "plain TCP connections to `egress` destinations pass the node's proxy",
        remedy: "run as root with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_PTRACE, on Linux 6.9 or later with cgroup v2, with a nearpath that was built with clang; \
                 in a container, allow seccomp listeners",
    }
}

fn listener_finding() -> CapabilityFinding {
    CapabilityFinding {
        name: "seccomp listeners",
        problem: error_text(&try_listener()),
        optional: true,
        impact: "no socket interception for plain TCP destinations of `egress`",
        remedy: "use Linux 6.6 or later; in a container, allow seccomp() and run without another seccomp listener",
    }
}

fn window_finding() -> CapabilityFinding {
    CapabilityFinding {
        name: "initial congestion windows",
        problem: error_text(&check_window_support()),
        optional: true,
        impact: "every connection starts with a window of ten segments",
        remedy: "run as root with CAP_BPF and CAP_NET_ADMIN, on Linux 5.15 or later with cgroup v2, with a nearpath that was built with clang",
    }
}

/// Checks that the node can set initial windows
/// ([`set_initial_window`](crate::sockets::set_initial_window)), on a connection to itself.
///
/// # Errors
/// Names the missing facility.
pub fn check_window_support() -> io::Result<()> {
    run_on_probe_thread(|| {
        let guard = crate::bpf::SocketCgroupGuard::enter_current_thread()?;
        guard.check_window_programs()?;
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let socket = std::net::TcpStream::connect(listener.local_addr()?)?;
        // u32::MAX means no limit, which would skip the pacing that is probed here.
        let wanted = crate::sockets::InitialWindow {
            segments: 20,
            bytes: 0,
            pacing_rate: u32::MAX - 1,
        };
        crate::sockets::set_initial_window(&socket, &wanted)?;
        match crate::sockets::tcp_flow_info(&socket)?.cwnd_segments {
            20 => Ok(()),
            other => Err(io::Error::other(format!(
                "the kernel accepted a window of 20 segments and set {other}"
            ))),
        }
    })
}

fn try_listener() -> io::Result<()> {
    run_on_probe_thread(|| {
        crate::seccomp::listener::install_listener()
            .map(drop)
            .map_err(|error| with_context("a seccomp listener", &error))
    })
}

/// Runs a probe on a thread of its own: filters and cgroups of a thread end with it.
fn run_on_probe_thread(what: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new()
        .name("probe".into())
        .spawn(what)?;
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the probing thread panicked")))
}

/// Checks that a warm socket can replace a function's own.
///
/// Connects must be reported, sockets inspected, and given sockets confined
/// ([`SocketCgroupGuard`](crate::bpf::SocketCgroupGuard)).
///
/// # Errors
/// Names the missing facility.
pub fn check_interception_support() -> io::Result<()> {
    run_on_probe_thread(|| crate::bpf::SocketCgroupGuard::enter_current_thread().map(drop))?;
    try_listener()?;
    crate::remote_thread::check_inspection_support()
}

fn with_context(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn usr_finding() -> CapabilityFinding {
    let problem = std::fs::read_dir("/usr")
        .err()
        .map(|error| format!("/usr: {error}"));
    CapabilityFinding {
        name: "host /usr",
        problem,
        optional: false,
        impact: "instances have no interpreters and libraries",
        remedy: "let nearpath read /usr",
    }
}

fn cgroup_findings() -> Vec<CapabilityFinding> {
    let cgroups = NodeCgroups::detect(&format!("probe-{}", std::process::id()));
    let missing = cgroups.missing_controllers();
    let socket_memory = cgroups.socket_memory_problem();
    cgroups.remove_node_folders();
    let finding = |controller: crate::cgroup::CgroupController, name, impact| CapabilityFinding {
        name,
        problem: missing
            .contains(&controller)
            .then(|| "no cgroup hierarchy is writable".to_owned()),
        optional: false,
        impact,
        remedy: "run as root, or delegate cgroups to this user (systemd: Delegate=yes)",
    };
    use crate::cgroup::CgroupController::{Cpu, Memory, Pids};
    let mut findings = vec![
        finding(
            Memory,
            "memory limits",
            "`limits.memory` is not enforced: one instance can exhaust the machine's memory",
        ),
        finding(
            Cpu,
            "CPU limits",
            "`limits.cpu` is not enforced: one instance can slow down all others",
        ),
        finding(Pids, "process limits", "no protection against fork bombs"),
    ];
    // Without a memory limit, the finding above says all.
    if !missing.contains(&Memory) {
        findings.push(socket_memory_finding(socket_memory));
    }
    findings
}

fn socket_memory_finding(problem: Option<String>) -> CapabilityFinding {
    CapabilityFinding {
        name: "socket memory limits",
        problem,
        optional: false,
        impact: "`limits.memory` does not cover socket buffers: each process of an instance gets one open file per MiB of it (at least 256), and can still exceed it several times with connections",
        remedy: "use cgroup v2 without cgroup.memory=nosocket, or a kernel whose cgroup v1 has memory.kmem.tcp.limit_in_bytes",
    }
}

fn error_text(result: &io::Result<()>) -> Option<String> {
    result.as_ref().err().map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_states_its_impact() {
        let found = probe_machine();
        assert!(found.findings.len() >= 7);
        for finding in found
            .findings
            .iter()
            .filter(|finding| !finding.is_available())
        {
            assert!(finding.to_string().contains(finding.impact), "{finding}");
        }
        if nearpath_testkit::is_root() {
            assert_eq!(found.isolation, IsolationLevel::Root, "{found}");
        }
    }

    #[test]
    fn socket_memory_is_a_finding_where_memory_is_limited() {
        let findings = cgroup_findings();
        let named = |name| findings.iter().find(|finding| finding.name == name);
        assert_eq!(
            named("memory limits").is_some_and(CapabilityFinding::is_available),
            named("socket memory limits").is_some()
        );
    }
}
