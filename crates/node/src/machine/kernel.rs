//! The real machine: namespaces, cgroups and seccomp of [`nearpath_kernel`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nearpath_egress::{AdmissionRequest, AdmittedInstance, EgressHandle};
use nearpath_kernel::bpf::{
    DirectSocket, DirectSockets, LoopbackCounters, LoopbackRedirect, PermittedPeers,
};
use nearpath_kernel::cgroup::{
    CgroupController, InstanceCgroup, NodeCgroups, ResourceLimits as KernelLimits, SocketGroup,
};
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sandbox::{
    self, BindMount, InstanceLauncher, InstanceNetwork, IsolationLevel, SandboxSpec,
};
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::{Eip, FunctionId, VirtualAddress};
use rustix::process::Pid;

use super::client_tls::{TrustFiles, requires_tls};
use super::kernel_process::{KernelProcess, ProcessResources, ScratchDir};
use super::loopback::LazyRedirect;
use super::{
    DISPATCH_PATH, DirectPathGuard, EgressAccess, InstanceLimits, InstanceMachine, InstanceSpec,
    MachineSocket, SocketPeers, StartedInstance,
};
use crate::config::DirectPorts;
use crate::forwarding::NodeForwarder;
use crate::instance::variables;
use crate::virtual_switch::{NodeSwitch, SwitchChange};

/// Starts instances as sandboxed processes of this machine.
pub struct KernelMachine {
    launcher: InstanceLauncher,
    /// Dropped after the launcher: the zygote is inside.
    socket_group: Option<SocketGroup>,
    cgroups: NodeCgroups,
    isolation: IsolationLevel,
    watchdog: PathBuf,
    hub: Option<Arc<HubNetns>>,
    gateway: Ipv4Addr,
    forwarder: Option<NodeForwarder>,
    switch: Option<NodeSwitch>,
    pool: Option<EgressHandle>,
    shared_dirs: Vec<PathBuf>,
    /// Folder of the files in [`TrustFiles`].
    trust_folder: PathBuf,
    /// `None` until an instance needs them.
    trust_files: Mutex<Option<Arc<TrustFiles>>>,
    loopback: LazyRedirect,
    /// Sockets for other nodes, and where they are opened.
    direct: Option<(DirectSockets, DirectPorts)>,
}

/// Maximum wait for asynchronous writes: the largest permitted `flush` of 600 s, and a margin.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(605);
/// Remark where the kernel does not restrict egress.
const UNENFORCED_EGRESS: &str = "egress is not enforced without a sandbox: this function reaches everything that this machine reaches";
/// Remark on a node without egress.
const NO_EGRESS: &str = "egress is unavailable on this node: no destination outside is reachable";

impl KernelMachine {
    /// Creates a machine with a launcher. `watchdog` is the program on the host.
    pub fn new(
        launcher: InstanceLauncher,
        cgroups: NodeCgroups,
        isolation: IsolationLevel,
        watchdog: &Path,
        network: (Ipv4Addr, Option<Arc<HubNetns>>),
    ) -> Self {
        let (gateway, hub) = network;
        let watchdog = watchdog.to_owned();
        Self {
            launcher,
            socket_group: None,
            cgroups,
            isolation,
            watchdog,
            hub,
            gateway,
            forwarder: None,
            switch: None,
            pool: None,
            shared_dirs: Vec::new(),
            trust_folder: PathBuf::new(),
            trust_files: Mutex::default(),
            loopback: LazyRedirect::default(),
            direct: None,
        }
    }

    /// Offers instances sockets of the machine, for direct calls between nodes.
    pub(crate) fn with_direct_ports(self, ports: DirectPorts) -> Self {
        // Without a sandbox any process could use the watchdog's descriptors.
        if !self.has_network() {
            return self;
        }
        let sockets = match DirectSockets::start() {
            Ok(sockets) => sockets,
            Err(error) => {
                tracing::warn!(%error, "direct calls between nodes are unavailable: this machine cannot filter sockets; calls go by the nodes");
                return self;
            }
        };
        Self {
            direct: Some((sockets, ports)),
            ..self
        }
    }

    /// Shows folders of the host to all instances, read-only and at the same paths.
    pub(crate) fn with_shared_dirs(self, shared_dirs: Vec<PathBuf>) -> Self {
        Self {
            shared_dirs,
            ..self
        }
    }

    /// Adds a forwarder for the packets of instances.
    pub(crate) fn with_forwarder(self, forwarder: NodeForwarder) -> Self {
        Self {
            forwarder: Some(forwarder),
            ..self
        }
    }

    /// Adds a virtual switch for the sockets of a group, in which the launcher's instances are.
    pub(crate) fn with_switch(self, group: SocketGroup, switch: Option<NodeSwitch>) -> Self {
        Self {
            socket_group: Some(group),
            switch,
            ..self
        }
    }

    /// Returns the virtual switch, where there is one.
    pub(crate) fn switch(&self) -> Option<NodeSwitch> {
        self.switch.clone()
    }

    /// Adds a pool for destinations outside. `trust_folder` gets the files by which instances trust
    /// its authority.
    pub(crate) fn with_pool(self, pool: EgressHandle, trust_folder: PathBuf) -> Self {
        Self {
            pool: Some(pool),
            trust_folder,
            ..self
        }
    }

    /// Admits an instance to its destinations, and returns remarks on those that it cannot reach.
    fn admit_egress(
        &self,
        from: &InstanceSpec,
    ) -> io::Result<(Option<AdmittedInstance>, Vec<String>)> {
        let EgressAccess {
            chain,
            destinations: egress,
            secrets,
        } = from.egress.clone();
        match (&self.pool, from.eip) {
            // Without declared destinations there is nothing to admit, and no remark to make.
            _ if egress.is_empty() => Ok((None, Vec::new())),
            (_, None) => Ok((None, vec![UNENFORCED_EGRESS.to_owned()])),
            (None, _) => Ok((None, vec![NO_EGRESS.to_owned()])),
            (Some(pool), Some(eip)) => {
                let (instance, function) = (from.id, from.function.clone());
                let admission = pool.admit_instance(&AdmissionRequest {
                    instance,
                    function,
                    chain,
                    eip,
                    egress,
                    secrets,
                    requires_tls: requires_tls(&from.environment, &from.secrets),
                })?;
                let problems = admission.unreachable.iter().map(ToString::to_string);
                let remarks = problems.chain(admission.warnings.iter().cloned()).collect();
                Ok((Some(admission), remarks))
            }
        }
    }

    /// Returns the files by which an instance trusts the node's adapters; `None` if no adapter
    /// answers it with TLS.
    fn trust_files(
        &self,
        from: &InstanceSpec,
        admission: Option<&AdmittedInstance>,
    ) -> io::Result<Option<Arc<TrustFiles>>> {
        let destinations = &from.egress.destinations;
        let mut protocols = destinations.iter().map(|to| to.protocol.traits());
        let has_tls = protocols.any(|protocol| protocol.client_tls);
        let Some(pool) = self
            .pool
            .as_ref()
            .filter(|_| has_tls && admission.is_some())
        else {
            return Ok(None);
        };
        // Locked while they are written: another instance may not see them half written.
        let mut known = self
            .trust_files
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            let written = TrustFiles::write(&self.trust_folder, pool.authority_pem());
            let written = written.map_err(|error| {
                let folder = self.trust_folder.display();
                let text = format!("cannot write the trusted authorities to {folder}: {error}");
                io::Error::new(error.kind(), text)
            })?;
            *known = Some(Arc::new(written));
        }
        Ok(known.clone())
    }

    fn sandbox_spec(
        &self,
        from: &InstanceSpec,
        cgroup: &InstanceCgroup,
        admission: Option<&AdmittedInstance>,
    ) -> SandboxSpec {
        let mut spec = SandboxSpec::new(from.id, self.isolation, self.watchdog.clone());
        let forwarder = self.forwarder.as_ref().map(NodeForwarder::kernel_forwarder);
        let mut destinations = admission
            .map(|admission| admission.routes.clone())
            .unwrap_or_default();
        let mut hosts = Vec::new();
        if let Some(switch) = &self.switch {
            destinations.extend(switch.routes());
            hosts.clone_from(&from.callees);
        }
        let inner_sockets = admission
            .map(|admission| admission.inner_sockets.clone())
            .unwrap_or_default();
        let bare = |eip| InstanceNetwork::new(eip, self.gateway, self.hub.clone());
        let network = |eip| InstanceNetwork {
            forwarder,
            destinations,
            hosts,
            inner_sockets,
            ..bare(eip)
        };
        spec.network = from.eip.map(network);
        spec.intercept_connects = admission.is_some_and(|admission| admission.is_intercepted);
        spec.local_gateway = from.local_gateway;
        spec.gateway_listener = from.gateway_listener;
        spec.cgroup_join_files = cgroup.join_files();
        // A kernel that does not count kills has a file without the line.
        spec.oom_kill_file = cgroup.oom_kills().and_then(|_| cgroup.oom_kill_file());
        (spec.uid, spec.gid) = (from.uid, from.uid);
        let target = PathBuf::from(SandboxSpec::FUNCTION_DIR);
        spec.binds = vec![BindMount {
            source: from.folder.clone(),
            target: target.clone(),
            writable: false,
        }];
        let shared = self.shared_dirs.iter().map(|folder| BindMount {
            source: folder.clone(),
            target: folder.clone(),
            writable: false,
        });
        spec.binds.extend(shared);
        let socket = from.dispatch_socket.iter().map(|socket| BindMount {
            source: socket.clone(),
            target: DISPATCH_PATH.into(),
            writable: false,
        });
        spec.binds
            // Without a mount namespace the instance sees the path on the host.
            .extend(socket.filter(|_| self.isolation != IsolationLevel::None));
        // Programs find their files by relative paths, as in an OpenFaaS image.
        spec.workdir = target;
        spec.secrets = from.secrets.clone();
        spec.read_only_root = from.read_only_root;
        let memory = from.limits.memory;
        if let Some(max) = memory.and_then(|bytes| self.cgroups.max_open_files(bytes)) {
            spec.open_files = spec.open_files.min(max);
        }
        spec.environment = from.environment.clone();
        spec.scratch = (self.isolation == IsolationLevel::None).then(|| from.tmp_dir.clone());
        spec
    }
}

impl InstanceMachine for KernelMachine {
    fn launch_instance(&self, spec: &InstanceSpec) -> io::Result<StartedInstance> {
        let mut cgroup = self
            .cgroups
            .create_instance(spec.id, &kernel_limits(&spec.limits))?;
        // Nothing is moved now: a start would pay for it.
        let zygote = self.socket_group.as_ref();
        cgroup.set_zygote_group(zygote.and_then(SocketGroup::zygote_group));
        // Each guard removes its part again if a later step fails.
        let scratch = ScratchDir::create(&spec.tmp_dir, self.isolation)?;
        let permit = self.forwarder.as_ref().zip(spec.eip);
        let permit = permit
            .map(|(all, eip)| all.admit_instance(eip, &spec.function))
            .transpose()?;
        let switch_permit = self.switch.as_ref().zip(spec.eip);
        let switch_permit = switch_permit
            .map(|(switch, eip)| {
                let has_gateway = spec.gateway_listener.is_some();
                switch.admit_instance((spec.uid, eip), spec.virtual_address, has_gateway)
            })
            .transpose()?;
        // Before the launch: the routes are part of the instance's network namespace.
        let (admission, remarks) = self.admit_egress(spec)?;
        let mut sandbox_spec = self.sandbox_spec(spec, &cgroup, admission.as_ref());
        if let Some(files) = self.trust_files(spec, admission.as_ref())? {
            files.add_to(&mut sandbox_spec);
        }
        let launched = self.launcher.launch_instance(&sandbox_spec)?;
        let sandbox::LaunchedInstance {
            pid,
            pidfd,
            stdout,
            stderr,
            notes,
            identity,
            listener,
            inner_sockets,
            gateway_listener,
        } = launched;
        if let Some((admission, listener)) = admission.as_ref().zip(listener) {
            admission.supervise_connects(listener)?;
        }
        if let Some((admission, inner_sockets)) = admission.as_ref().zip(inner_sockets) {
            admission.serve_inner_sockets(inner_sockets)?;
        }
        // Elsewhere the PID namespace ends with its first process (pid_namespaces(7)).
        let session = Pid::from_raw(pid as i32).filter(|_| self.isolation == IsolationLevel::None);
        let resources = ProcessResources {
            cgroup,
            _scratch: scratch,
            _admitted: admission,
            _permit: permit,
            switch_permit,
            is_frozen: false,
        };
        let process = KernelProcess::start((pid, pidfd), session, resources);
        Ok(StartedInstance {
            pid,
            stdout,
            stderr,
            notes,
            identity,
            gateway_listener,
            remarks,
            process,
        })
    }

    fn prefetch(&self, function: &FunctionId) {
        self.pool.iter().for_each(|pool| pool.prefetch(function));
    }

    fn flush_writes(&self) {
        let settled = self
            .pool
            .as_ref()
            .is_none_or(|pool| pool.wait_delivered(FLUSH_TIMEOUT));
        if !settled {
            tracing::warn!(
                "asynchronous writes (`writes=async`) were lost: the time to deliver them is over"
            );
        }
    }

    fn remove_cgroups(&self) {
        self.pool.iter().for_each(EgressHandle::stop);
        self.cgroups.remove_node_folders();
    }

    fn sweep_leftovers(&self) -> io::Result<()> {
        let report = self.cgroups.sweep_leftovers()?;
        if report.removed > 0 {
            tracing::info!(
                cgroups = report.removed,
                killed = report.killed,
                "removed leftovers of an earlier run"
            );
        }
        Ok(())
    }

    fn pool_status(&self) -> Vec<PoolStatus> {
        self.pool
            .as_ref()
            .map(EgressHandle::pool_statuses)
            .unwrap_or_default()
    }

    fn close_idle_connections(&self) {
        self.pool.iter().for_each(EgressHandle::drain_idle);
    }

    fn set_egress_nodes(&self, counts: BTreeMap<String, u32>) {
        self.pool
            .iter()
            .for_each(|pool| pool.set_node_counts(counts.clone()));
    }

    fn loopback_redirect(&self) -> io::Result<Arc<LoopbackRedirect>> {
        self.loopback.attach(&self.cgroups)
    }

    fn loopback_counters(&self) -> LoopbackCounters {
        self.loopback.read_counters()
    }

    fn set_virtual_network(&self, any: VirtualAddress) {
        let Some(switch) = &self.switch else { return };
        if let Err(error) = switch.set_networks(Some(any)) {
            tracing::warn!(%error, "virtual addresses of IPv6 are unavailable");
        }
    }

    fn apply_switch_changes(&self, changes: &[SwitchChange]) {
        let Some(switch) = &self.switch else { return };
        for change in changes {
            if let Err(error) = switch.apply_change(change) {
                tracing::warn!(?change, %error, "row of the virtual switch could not be written; these connections are denied");
            }
        }
        switch.cut_removed_edges(changes);
    }

    fn has_network(&self) -> bool {
        self.isolation != IsolationLevel::None
    }

    /// Needs the switch: without it, connections of others could not be ended.
    fn can_freeze(&self) -> bool {
        self.switch.is_some()
    }

    /// Needs a forwarder: without one the hub carries no packets between instances.
    fn open_direct_path(&self, one: Eip, other: Eip) -> Option<DirectPathGuard> {
        let joined = self
            .forwarder
            .as_ref()?
            .permit_pair(one, other, variables::WATCHDOG_PORT);
        let joined =
            // Not fatal: the gateway reaches every instance.
            joined.inspect_err(|error| tracing::warn!(%one, %other, %error, "direct path could not be opened; calls go through the gateway"));
        joined
            .ok()
            .map(|bridge| Box::new(bridge) as DirectPathGuard)
    }

    fn open_machine_socket(&self) -> io::Result<Option<MachineSocket>> {
        let Some((sockets, ports)) = &self.direct else {
            return Ok(None);
        };
        let DirectSocket {
            socket,
            port,
            peers,
        } = sockets.open(ports.ip, ports.ports.clone())?;
        Ok(Some(MachineSocket {
            socket,
            port,
            peers: Box::new(peers),
        }))
    }

    /// Ignores the process limit, which is usually the node's own default.
    fn unenforced_limits(&self, limits: &InstanceLimits) -> Vec<&'static str> {
        let named = [
            (
                limits.memory.is_some(),
                CgroupController::Memory,
                "limits.memory",
            ),
            (limits.cpu.is_some(), CgroupController::Cpu, "limits.cpu"),
        ];
        let missing = self.cgroups.missing_controllers();
        let unkept = named
            .into_iter()
            .filter(|(set, controller, _)| *set && missing.contains(controller));
        unkept.map(|(_, _, name)| name).collect()
    }
}

impl SocketPeers for PermittedPeers {
    fn replace(&mut self, peers: BTreeSet<SocketAddr>) -> io::Result<()> {
        PermittedPeers::replace(self, peers)
    }
}

fn kernel_limits(from: &InstanceLimits) -> KernelLimits {
    KernelLimits {
        memory_bytes: from.memory,
        cpu_millis: from.cpu,
        pids: from.pids,
    }
}
