//! The specification of an instance, which the node sends to the child that becomes it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nearpath_types::{Eip, InstanceId};
use serde::{Deserialize, Serialize};

use super::inner_socket::InnerSocket;
use crate::bpf::Forwarder;
use crate::hub_netns::HubNetns;

/// Isolation of instances from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationLevel {
    /// For a node with root: every namespace, an unprivileged uid per instance, cgroups.
    Root,
    /// For a node without root in a user namespace ([`super::enter_user_namespace`]): every
    /// namespace, one uid for all instances, delegated cgroups.
    UserNamespace,
    /// No namespaces: an ordinary process with `no_new_privs`, seccomp filters and resource limits.
    None,
}

/// A host file or folder that is visible inside the instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMount {
    /// Path on the host.
    pub source: PathBuf,
    /// Path inside the instance: absolute, without `..`.
    pub target: PathBuf,
    /// Permits the instance to write.
    pub writable: bool,
}

/// Connection of an instance to the node's network.
#[derive(Clone, Serialize, Deserialize)]
pub struct InstanceNetwork {
    /// Address of the instance.
    pub eip: Eip,
    /// Address of the gateway, the only reachable one without `destinations`.
    pub gateway: std::net::Ipv4Addr,
    /// Namespace of the veth pair's other end. The child gets it as a descriptor; required for
    /// launching.
    #[serde(skip)]
    pub hub: Option<Arc<HubNetns>>,
    /// Forwarder that replaces the hub's network stack. It is attached before any code of the
    /// instance runs. The caller sets permissions and detaches it.
    #[serde(skip)]
    pub forwarder: Option<Arc<Forwarder>>,
    /// Destinations that the hub handles: besides the gateway, the only routes of the instance.
    pub destinations: Vec<DestinationRoute>,
    /// Addresses with their names in `/etc/hosts`, besides those of `destinations`.
    pub hosts: Vec<HostEntry>,
    /// Sockets of the node inside the instance; [`super::LaunchedInstance::inner_sockets`] receives
    /// them.
    pub inner_sockets: Vec<InnerSocket>,
}

/// A destination address, or a network of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationRoute {
    /// Address of the destination.
    pub address: std::net::Ipv4Addr,
    /// Prefix length of its network; 32 for one address.
    pub prefix_len: u8,
    /// Name in the instance's `/etc/hosts`, if any.
    pub hostname: Option<String>,
}

/// An address, and its names in the instance's `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// Address.
    pub address: std::net::IpAddr,
    /// Names, the canonical one first.
    pub names: Vec<String>,
}

impl InstanceNetwork {
    /// Returns a network from which only the gateway is reachable.
    pub fn new(eip: Eip, gateway: std::net::Ipv4Addr, hub: Option<Arc<HubNetns>>) -> Self {
        Self {
            eip,
            gateway,
            hub,
            forwarder: None,
            destinations: Vec::new(),
            hosts: Vec::new(),
            inner_sockets: Vec::new(),
        }
    }
}

impl fmt::Debug for InstanceNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstanceNetwork")
            .field("eip", &self.eip)
            .field("gateway", &self.gateway)
            .finish()
    }
}

/// Everything that one instance needs. Start from [`SandboxSpec::new`].
#[derive(Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Id; names the veth device, and the host without `hostname`.
    pub instance: InstanceId,
    /// Isolation of the instance.
    pub isolation: IsolationLevel,
    /// Host name: ASCII alphanumerics and `-`, at most 63 octets.
    pub hostname: String,
    /// Network; `None` leaves only the instance's own loopback. Ignored with
    /// [`IsolationLevel::None`].
    pub network: Option<InstanceNetwork>,
    /// Loopback address that the name `gateway` resolves to, instead of the gateway's.
    pub local_gateway: Option<std::net::Ipv4Addr>,
    /// Address inside at which the gateway itself listens;
    /// [`super::LaunchedInstance::gateway_listener`] receives the socket. Ignored with
    /// [`IsolationLevel::None`].
    pub gateway_listener: Option<std::net::SocketAddrV4>,
    /// Files through which the child joins its cgroups:
    /// [`crate::cgroup::InstanceCgroup::join_files`].
    pub cgroup_join_files: Vec<PathBuf>,
    /// File that counts processes killed for lack of memory, which the watchdog gets open for
    /// reading: [`crate::cgroup::InstanceCgroup::oom_kill_file`].
    pub oom_kill_file: Option<PathBuf>,
    /// User id, not 0. For [`IsolationLevel::Root`] only.
    pub uid: u32,
    /// Group id, not 0. For [`IsolationLevel::Root`] only.
    pub gid: u32,
    /// Host folders besides `/usr`, `/opt` and parts of `/etc`. With [`IsolationLevel::None`] they
    /// only locate `workdir` on the host.
    pub binds: Vec<BindMount>,
    /// Files below `/var/openfaas/secrets`, by name. With [`IsolationLevel::None`] they are in
    /// `scratch`.
    #[serde(with = "secrets")]
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// Makes everything but `/tmp` and `/dev/shm` read-only.
    pub read_only_root: bool,
    /// Size of `/tmp` in bytes; its content counts as memory of the instance.
    pub tmp_bytes: u64,
    /// Size of a writable root file system in bytes.
    pub root_bytes: u64,
    /// Maximum number of open descriptors per process.
    pub open_files: u64,
    /// With [`IsolationLevel::None`], a private folder for `TMPDIR` and `secrets`, which the node
    /// removes afterwards.
    pub scratch: Option<PathBuf>,
    /// Path of the watchdog on the host. Inside it is [`SandboxSpec::WATCHDOG_PATH`].
    pub program: PathBuf,
    /// Arguments of the watchdog, without its name.
    pub arguments: Vec<String>,
    /// Complete environment; `NEARPATH_NOTES_FD` is added.
    pub environment: BTreeMap<String, String>,
    /// Reports connect() to the node, so that a warm socket can replace the instance's own.
    pub intercept_connects: bool,
    /// Working directory inside the instance.
    pub workdir: PathBuf,
}

impl SandboxSpec {
    /// Path of the watchdog inside an instance.
    pub const WATCHDOG_PATH: &'static str = "/run/nearpath/nearpath-watchdog";
    /// Path of the function's folder inside an instance.
    pub const FUNCTION_DIR: &'static str = "/home/app/function";
    /// Path of the secrets inside an instance, as in OpenFaaS.
    pub const SECRETS_DIR: &'static str = "/var/openfaas/secrets";

    /// Returns a spec with a read-only root, 64 MiB of `/tmp`, no network, no binds and an empty
    /// environment.
    pub fn new(instance: InstanceId, isolation: IsolationLevel, program: PathBuf) -> Self {
        Self {
            instance,
            isolation,
            hostname: instance.to_string(),
            network: None,
            local_gateway: None,
            gateway_listener: None,
            cgroup_join_files: Vec::new(),
            oom_kill_file: None,
            uid: 65_534,
            // The unprivileged user and group of every Linux distribution.
            gid: 65_534,
            binds: Vec::new(),
            secrets: BTreeMap::new(),
            read_only_root: true,
            // As much as a container's default for /dev/shm.
            tmp_bytes: 64 << 20,
            root_bytes: 16 << 20,
            open_files: 65_536,
            scratch: None,
            program,
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            intercept_connects: false,
            workdir: PathBuf::from("/"),
        }
    }

    /// Converts a path inside to the host's path, by the binds. A path outside all binds is
    /// returned unchanged.
    pub(crate) fn host_path(&self, inside: &Path) -> PathBuf {
        let through =
            |bind: &BindMount| Some(bind.source.join(inside.strip_prefix(&bind.target).ok()?));
        self.binds
            .iter()
            .find_map(through)
            .unwrap_or_else(|| inside.to_owned())
    }
}

/// Keeps the bytes of secrets out of logs.
impl fmt::Debug for SandboxSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.secrets.keys().collect();
        f.debug_struct("SandboxSpec")
            .field("instance", &self.instance)
            .field("isolation", &self.isolation)
            .field("network", &self.network)
            .field("uid", &self.uid)
            .field("binds", &self.binds)
            .field("secrets", &names)
            .finish_non_exhaustive()
    }
}

/// Secrets in spawn requests: UTF-8 as text, anything else as a list of bytes.
mod secrets {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum SecretContent {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(
        from: &BTreeMap<String, Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let content = |bytes: &Vec<u8>| match String::from_utf8(bytes.clone()) {
            Ok(text) => SecretContent::Text(text),
            Err(error) => SecretContent::Bytes(error.into_bytes()),
        };
        to.collect_map(from.iter().map(|(name, bytes)| (name, content(bytes))))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, Vec<u8>>, D::Error> {
        let bytes = |content| match content {
            SecretContent::Text(text) => text.into_bytes(),
            SecretContent::Bytes(bytes) => bytes,
        };
        let all = BTreeMap::<String, SecretContent>::deserialize(from)?;
        Ok(all
            .into_iter()
            .map(|(name, content)| (name, bytes(content)))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_inner_path_maps_to_its_host_path() {
        let mut spec = SandboxSpec::new(InstanceId(1), IsolationLevel::None, "/bin/true".into());
        let target = PathBuf::from(SandboxSpec::FUNCTION_DIR);
        spec.binds = vec![BindMount {
            source: "/srv/echo".into(),
            target,
            writable: false,
        }];
        assert_eq!(
            spec.host_path(Path::new("/home/app/function/sub")),
            Path::new("/srv/echo/sub")
        );
        assert_eq!(spec.host_path(Path::new("/tmp")), Path::new("/tmp"));
    }

    proptest! {
        #[test]
        fn a_spec_survives_serialization(name in "[a-z]{1,8}", secret in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut spec = SandboxSpec::new(InstanceId(u64::MAX), IsolationLevel::Root, "/bin/true".into());
            spec.secrets.insert(name.clone(), secret.clone());
            let read: SandboxSpec = serde_json::from_slice(&serde_json::to_vec(&spec).unwrap()).unwrap();
            prop_assert_eq!(&read.secrets[&name], &secret);
            let debug_text = format!("{read:?}");
            prop_assert!(debug_text.contains(&name));
        }
    }
}
