//! What this machine allows, and what is lost where it does not: for `nearpath doctor` and for choosing [`Isolation`].

use std::fmt;
use std::io;
use std::path::Path;

use crate::cgroup::Cgroups;
use crate::sandbox::{Isolation, namespaces_allowed};
use crate::seccomp::Filters;

/// One thing that an instance's sandbox is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub name: &'static str,
    /// Why it is not there; `None`: it is.
    pub trouble: Option<String>,
    /// Nothing needs it that does not ask for it by name.
    pub optional: bool,
    /// What is lost without it.
    pub lost: &'static str,
    /// What an operator can do about it.
    pub remedy: &'static str,
}

/// Everything that was found. Displays as one line a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The best isolation that can be had.
    pub isolation: Isolation,
    /// One entry a part.
    pub findings: Vec<Finding>,
}

const ROOT_NAMESPACES: i32 =
    libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;

/// Tries what instances need, in a child process that changes nothing outside itself.
pub fn probe() -> Capabilities {
    let (as_root, as_user) = namespaces();
    let isolation = best(&as_root, &as_user);
    let mut findings = vec![root(&as_root), user_namespaces(&as_user)];
    findings.extend([seccomp(), usr(), sockmap(), forwarding(), listeners(), shortcut(), windows()]);
    findings.extend(cgroups());
    Capabilities { isolation, findings }
}

/// The best isolation that can be had: [`Capabilities::isolation`] alone, which takes about a millisecond.
pub fn isolation() -> Isolation {
    let (as_root, as_user) = namespaces();
    best(&as_root, &as_user)
}

/// Whether they may be made as root and in a user namespace.
fn namespaces() -> (io::Result<()>, io::Result<()>) {
    let as_user = namespaces_allowed(ROOT_NAMESPACES | libc::CLONE_NEWUSER).and_then(|()| may_map_itself());
    (namespaces_allowed(ROOT_NAMESPACES), as_user)
}

/// Since Linux 5.12 root needs a capability to be somebody in a user namespace (`man 7 user_namespaces`); others do not.
fn may_map_itself() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, capabilities};
    let root = rustix::process::geteuid().is_root();
    match root && !capabilities(None)?.effective.contains(CapabilitySet::SETFCAP) {
        true => Err(io::Error::new(io::ErrorKind::PermissionDenied, "root without CAP_SETFCAP may not be mapped")),
        false => Ok(()),
    }
}

/// Root in a container often may not make namespaces, but a user namespace first and then all others.
fn best(as_root: &io::Result<()>, as_user: &io::Result<()>) -> Isolation {
    match (as_root, as_user) {
        (Ok(()), _) if rustix::process::geteuid().is_root() => Isolation::Root,
        (_, Ok(())) => Isolation::UserNamespace,
        _ => Isolation::None,
    }
}

impl Finding {
    /// Whether it is there.
    pub fn is_there(&self) -> bool {
        self.trouble.is_none()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trouble {
            None => write!(f, "yes  {}", self.name),
            Some(trouble) => write!(f, "no   {}: {trouble}; lost: {}; remedy: {}", self.name, self.lost, self.remedy),
        }
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

fn root(namespaces: &io::Result<()>) -> Finding {
    let root = rustix::process::geteuid().is_root();
    let trouble = if root { said(namespaces) } else { Some("not running as root".into()) };
    Finding {
        name: "namespaces as root",
        trouble,
        optional: false,
        lost: "a user of its own for each instance",
        remedy: if root {
            "give this root CAP_SYS_ADMIN and CAP_NET_ADMIN (a container: --privileged)"
        } else {
            "run `nearpath up` as root"
        },
    }
}

fn user_namespaces(namespaces: &io::Result<()>) -> Finding {
    Finding {
        name: "user namespaces",
        trouble: said(namespaces),
        optional: false,
        lost: "isolation without root",
        remedy: "set kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0 and \
                 user.max_user_namespaces above 0, or run as root",
    }
}

fn seccomp() -> Finding {
    let missing =
        (!Path::new("/proc/sys/kernel/seccomp").exists()).then(|| "this kernel was built without it".to_owned());
    Finding {
        name: "seccomp",
        trouble: missing.or_else(|| Filters::compile().err().map(|error| error.to_string())),
        optional: false,
        lost: "the second wall around instances; they will not start",
        remedy: "use a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
    }
}

fn sockmap() -> Finding {
    Finding {
        name: "descriptors carried by the kernel",
        trouble: said(&crate::bpf::possible()),
        optional: true,
        lost: "`nearpath.io/delivery: sockmap`; such chains go over HTTP",
        remedy: "run as root with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN, on a nearpath built where clang is",
    }
}

fn forwarding() -> Finding {
    Finding {
        name: "packets forwarded by the kernel",
        trouble: said(&crate::bpf::forwarding_possible()),
        optional: true,
        lost: "`nearpath up --forward tc`",
        remedy: "run as root with CAP_BPF and CAP_NET_ADMIN, on Linux 6.6 or later, on a nearpath built where clang is",
    }
}

fn shortcut() -> Finding {
    Finding {
        name: "warm sockets in the place of a function's own",
        trouble: said(&shortcut_possible()),
        optional: true,
        lost: "the shortcut to destinations that `egress` declares in plain TCP: the node carries them, warm, but with a hop more",
        remedy: "run as root with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_PTRACE, on Linux 6.9 or later with cgroup v2, on a nearpath built where clang is; \
                 in a container, allow seccomp listeners",
    }
}

fn listeners() -> Finding {
    Finding {
        name: "seccomp listeners",
        trouble: said(&listening_possible()),
        optional: true,
        lost: "the shortcut to destinations that `egress` declares in plain TCP",
        remedy: "use Linux 6.6 or later; in a container, allow the system call seccomp() and no listener around it",
    }
}

fn windows() -> Finding {
    Finding {
        name: "opened congestion windows",
        trouble: said(&windows_possible()),
        optional: true,
        lost: "what earlier connections found out about a path: whatever is sent to a destination begins with ten segments",
        remedy: "run as root with CAP_BPF and CAP_NET_ADMIN, on Linux 5.15 or later with cgroup v2, on a nearpath built where clang is",
    }
}

/// Whether connections can begin with a window of the node's choice ([`open_window`](crate::sockets::open_window)). Tried, with a connection to itself.
///
/// # Errors
/// What is missing.
pub fn windows_possible() -> io::Result<()> {
    tried(|| {
        let fence = crate::bpf::Fence::around_this_thread()?;
        fence.opens_windows()?;
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let socket = std::net::TcpStream::connect(listener.local_addr()?)?;
        let wanted = crate::sockets::Window { segments: 20, octets: 0, pace: u32::MAX - 1 };
        crate::sockets::open_window(&socket, &wanted)?;
        match crate::sockets::flow(&socket)?.window {
            20 => Ok(()),
            other => Err(io::Error::other(format!("the kernel took it, and has {other} segments for 20"))),
        }
    })
}

fn listening_possible() -> io::Result<()> {
    tried(|| crate::seccomp::listener::install().map(drop).map_err(|error| said_of("a seccomp listener", &error)))
}

/// On a thread that ends with what it tries.
fn tried(what: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("probe".into()).spawn(what)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the probing thread panicked")))
}

/// Whether a warm socket can take the place of a function's own here: its connects can be asked about, its sockets looked at, and what it is given is kept
/// where it was connected to ([`Fence`](crate::bpf::Fence)). Tried, by a thread that ends with its filter.
///
/// # Errors
/// What is missing.
pub fn shortcut_possible() -> io::Result<()> {
    tried(|| crate::bpf::Fence::around_this_thread().map(drop))?;
    listening_possible()?;
    crate::foreign::possible()
}

fn said_of(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn usr() -> Finding {
    let trouble = std::fs::read_dir("/usr").err().map(|error| format!("/usr: {error}"));
    Finding {
        name: "a host system to share",
        trouble,
        optional: false,
        lost: "the interpreters and libraries that instances run with",
        remedy: "let nearpath read /usr",
    }
}

fn cgroups() -> Vec<Finding> {
    let cgroups = Cgroups::detect(&format!("probe-{}", std::process::id()));
    let missing = cgroups.missing();
    cgroups.leave();
    let finding = |controller: crate::cgroup::Controller, name, lost| Finding {
        name,
        trouble: missing.contains(&controller).then(|| "no hierarchy where this process may make groups".to_owned()),
        optional: false,
        lost,
        remedy: "run as root, or delegate cgroups to this user (systemd: Delegate=yes)",
    };
    use crate::cgroup::Controller::{Cpu, Memory, Pids};
    vec![
        finding(Memory, "memory limits", "`limits.memory`: one instance can use up the machine's memory"),
        finding(Cpu, "CPU limits", "`limits.cpu`: one instance can slow the others down"),
        finding(Pids, "process limits", "a fork bomb in one instance reaches all"),
    ]
}

fn said(result: &io::Result<()>) -> Option<String> {
    result.as_ref().err().map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_is_lost() {
        let found = probe();
        assert!(found.findings.len() >= 7);
        for finding in found.findings.iter().filter(|finding| !finding.is_there()) {
            assert!(finding.to_string().contains(finding.lost), "{finding}");
        }
        if nearpath_testkit::is_root() {
            assert_eq!(found.isolation, Isolation::Root, "{found}");
        }
    }
}
