//! Everything that one instance needs, as told by the node to the child that becomes the instance.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nearpath_types::{Eip, InstanceId};
use serde::{Deserialize, Serialize};

use super::hatch::Hatch;
use crate::bpf::Forwarder;
use crate::switch::Switch;

/// How far an instance is kept apart from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// The node is root: every namespace, an unprivileged uid an instance, cgroups.
    Root,
    /// The node is not root, but made a user namespace ([`super::enter_user_namespace`]): every namespace, one uid for
    /// all instances, cgroups only where they were delegated.
    UserNamespace,
    /// No namespaces: an ordinary process with `no_new_privs`, the seccomp list and resource limits.
    None,
}

/// A host file or folder shown inside the instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where the instance sees it: absolute, without `..`.
    pub target: PathBuf,
    /// Whether the instance may write to it.
    pub writable: bool,
}

/// The instance's place in the node's network.
#[derive(Clone, Serialize, Deserialize)]
pub struct Network {
    /// Its address.
    pub eip: Eip,
    /// The gateway's address: without `destinations` the only one that it reaches.
    pub gateway: std::net::Ipv4Addr,
    /// Where its veth pair's other end goes. Handed to the child as a descriptor; must be set when launching.
    #[serde(skip)]
    pub switch: Option<Arc<Switch>>,
    /// What moves the pair's packets instead of the switch's stack. It stands before anything of the instance runs;
    /// whom it lets through is for the caller to say, and to take it away for the caller as well.
    #[serde(skip)]
    pub forwarder: Option<Arc<Forwarder>>,
    /// Addresses outside that the switch answers for: besides the gateway, the only ones to which it has a route.
    pub destinations: Vec<Destination>,
    /// Where the node has sockets inside; with any, [`super::Launched::hatches`] brings them.
    pub hatches: Vec<Hatch>,
}

/// An address outside that an instance may know, or a network of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The address.
    pub address: std::net::Ipv4Addr,
    /// The length of its network's prefix; 32: it is one address.
    pub length: u8,
    /// What it is called in the instance's `/etc/hosts`, if it has a name.
    pub name: Option<String>,
}

impl Network {
    /// A place at the switch, from which nothing but the gateway is reached.
    pub fn new(eip: Eip, gateway: std::net::Ipv4Addr, switch: Option<Arc<Switch>>) -> Self {
        Self { eip, gateway, switch, forwarder: None, destinations: Vec::new(), hatches: Vec::new() }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("eip", &self.eip).field("gateway", &self.gateway).finish()
    }
}

/// One instance, completely. Start from [`Spec::new`].
#[derive(Clone, Serialize, Deserialize)]
pub struct Spec {
    /// Names its veth and, without `hostname`, nothing else.
    pub instance: InstanceId,
    /// How far it is kept apart.
    pub isolation: Isolation,
    /// What it calls itself. A host name: letters, digits and `-`, at most 63.
    pub hostname: String,
    /// Its place in the network; `None`: no device but its own loopback. Not used with [`Isolation::None`].
    pub network: Option<Network>,
    /// An address of its own loopback that the name `gateway` means, instead of the gateway's.
    pub pickup: Option<std::net::Ipv4Addr>,
    /// Files through which the child joins its cgroups: [`crate::cgroup::Cgroup::join_files`].
    pub cgroup: Vec<PathBuf>,
    /// Its user, not 0. Used with [`Isolation::Root`] only.
    pub uid: u32,
    /// Its group, not 0. Used with [`Isolation::Root`] only.
    pub gid: u32,
    /// What it sees of the host beside `/usr`, `/opt` and some of `/etc`. With [`Isolation::None`] it only tells where
    /// `workdir` is on the host.
    pub binds: Vec<Bind>,
    /// Files below `/var/openfaas/secrets`, by name. With [`Isolation::None`]: in `scratch`.
    #[serde(with = "secrets")]
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// Whether only `/tmp` and `/dev/shm` can be written to.
    pub read_only_root: bool,
    /// Size of `/tmp`, in bytes; what is in it counts as the instance's memory.
    pub tmp_bytes: u64,
    /// Size of the root file system, in bytes, where it can be written to.
    pub root_bytes: u64,
    /// Most file descriptors a process of the instance may have.
    pub open_files: u64,
    /// With [`Isolation::None`], a folder of its own, which the node removes after it: `TMPDIR`, and `secrets` in it.
    pub scratch: Option<PathBuf>,
    /// The watchdog, on the host. Inside it is [`Spec::WATCHDOG`].
    pub program: PathBuf,
    /// The watchdog's arguments, without its name.
    pub arguments: Vec<String>,
    /// Its whole environment; `NEARPATH_NOTES_FD` is added.
    pub environment: BTreeMap<String, String>,
    /// Whether its connects are asked about, so that a warm socket can take the place of its own.
    pub listened: bool,
    /// Where it starts, as a path inside.
    pub workdir: PathBuf,
}

impl Spec {
    /// Where the watchdog is inside an instance.
    pub const WATCHDOG: &'static str = "/run/nearpath/nearpath-watchdog";
    /// Where a function's folder is inside an instance.
    pub const FUNCTION: &'static str = "/home/app/function";
    /// Where secrets are inside an instance: OpenFaaS's place.
    pub const SECRETS: &'static str = "/var/openfaas/secrets";

    /// A spec with a read-only root, 64 MiB of `/tmp`, no network, no binds and an empty environment.
    pub fn new(instance: InstanceId, isolation: Isolation, program: PathBuf) -> Self {
        Self {
            instance,
            isolation,
            hostname: instance.to_string(),
            network: None,
            pickup: None,
            cgroup: Vec::new(),
            uid: 65_534,
            gid: 65_534,
            binds: Vec::new(),
            secrets: BTreeMap::new(),
            read_only_root: true,
            tmp_bytes: 64 << 20,
            root_bytes: 16 << 20,
            open_files: 65_536,
            scratch: None,
            program,
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            listened: false,
            workdir: PathBuf::from("/"),
        }
    }

    /// The host's path of a path inside, by the binds; the path itself where no bind holds it.
    pub(crate) fn on_host(&self, inside: &Path) -> PathBuf {
        let through = |bind: &Bind| Some(bind.source.join(inside.strip_prefix(&bind.target).ok()?));
        self.binds.iter().find_map(through).unwrap_or_else(|| inside.to_owned())
    }
}

/// Secret bytes stay out of logs.
impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.secrets.keys().collect();
        f.debug_struct("Spec")
            .field("instance", &self.instance)
            .field("isolation", &self.isolation)
            .field("network", &self.network)
            .field("uid", &self.uid)
            .field("binds", &self.binds)
            .field("secrets", &names)
            .finish_non_exhaustive()
    }
}

/// Secrets in the child's orders: text as it is, anything else as a list of bytes.
mod secrets {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Content {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(from: &BTreeMap<String, Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        let content = |bytes: &Vec<u8>| match String::from_utf8(bytes.clone()) {
            Ok(text) => Content::Text(text),
            Err(error) => Content::Bytes(error.into_bytes()),
        };
        to.collect_map(from.iter().map(|(name, bytes)| (name, content(bytes))))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Vec<u8>>, D::Error> {
        let bytes = |content| match content {
            Content::Text(text) => text.into_bytes(),
            Content::Bytes(bytes) => bytes,
        };
        let all = BTreeMap::<String, Content>::deserialize(from)?;
        Ok(all.into_iter().map(|(name, content)| (name, bytes(content))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_inside_is_found_on_the_host() {
        let mut spec = Spec::new(InstanceId(1), Isolation::None, "/bin/true".into());
        let target = PathBuf::from(Spec::FUNCTION);
        spec.binds = vec![Bind { source: "/srv/echo".into(), target, writable: false }];
        assert_eq!(spec.on_host(Path::new("/home/app/function/sub")), Path::new("/srv/echo/sub"));
        assert_eq!(spec.on_host(Path::new("/tmp")), Path::new("/tmp"));
    }

    proptest! {
        #[test]
        fn a_spec_survives_the_way_to_the_child(name in "[a-z]{1,8}", secret in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut spec = Spec::new(InstanceId(u64::MAX), Isolation::Root, "/bin/true".into());
            spec.secrets.insert(name.clone(), secret.clone());
            let read: Spec = serde_json::from_slice(&serde_json::to_vec(&spec).unwrap()).unwrap();
            prop_assert_eq!(&read.secrets[&name], &secret);
            let shown = format!("{read:?}");
            prop_assert!(shown.contains(&name));
        }
    }
}
