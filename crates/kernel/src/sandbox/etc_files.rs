//! `/etc` of an instance: its users, its name resolution, and files shared with the host.

use std::fs;
use std::io;
use std::path::Path;

use super::inner_socket::InnerSocket;
use super::spec::SandboxSpec;

/// Files and folders shared with the host where they exist: for the dynamic linker, TLS
/// verification and time zones.
pub(super) const HOST_FILES: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/python3",
    "/etc/java-17-openjdk",
];

/// Writes the instance's own files below the working directory.
pub(super) fn write_files(spec: &SandboxSpec, uid: u32, gid: u32) -> io::Result<()> {
    fs::create_dir_all("etc")?;
    for (name, text) in file_contents(spec, uid, gid) {
        fs::write(Path::new("etc").join(name), text)?;
    }
    Ok(())
}

fn file_contents(spec: &SandboxSpec, uid: u32, gid: u32) -> [(&'static str, String); 6] {
    let name = if uid == 0 { "root" } else { "app" }; // a user namespace maps only one user, to 0
    let root = if uid == 0 {
        String::new()
    } else {
        "root:x:0:0:root:/:/usr/sbin/nologin\n".into()
    };
    let group = if gid == 0 {
        "root:x:0:\n".into()
    } else {
        format!("root:x:0:\napp:x:{gid}:\n")
    };
    [
        (
            "passwd",
            format!("{root}{name}:x:{uid}:{gid}::/home/app:/bin/sh\n"),
        ),
        ("group", group),
        ("hostname", format!("{}\n", spec.hostname)),
        ("hosts", hosts_file(spec)),
        ("resolv.conf", resolv_conf(spec)),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n".into(),
        ),
    ]
}

/// Returns `resolv.conf`: the node's UDP socket inside the instance if there is one, else no
/// server.
fn resolv_conf(spec: &SandboxSpec) -> String {
    let sockets = spec
        .network
        .iter()
        .flat_map(|network| &network.inner_sockets);
    let resolver = sockets
        .filter(|socket| matches!(socket, InnerSocket::UdpV4(_)))
        .map(|socket| socket.address().ip())
        .next();
    match resolver {
        Some(at) => format!("nameserver {at}\n"),
        None => "# No name server is reachable; names are in /etc/hosts.\noptions timeout:1 attempts:1\n".into(),
    }
}

fn hosts_file(spec: &SandboxSpec) -> String {
    let local = "127.0.0.1 localhost\n";
    match &spec.network {
        Some(network) => {
            let gateway = spec.local_gateway.unwrap_or(network.gateway);
            let entries = network
                .destinations
                .iter()
                .filter_map(|one| Some(format!("{} {}\n", one.address, one.hostname.as_ref()?)));
            let hosts = network.hosts.iter();
            let hosts = hosts.map(|one| format!("{} {}\n", one.address, one.names.join(" ")));
            let entries: String = entries.chain(hosts).collect();
            format!(
                "{local}{gateway} gateway gateway.openfaas\n{} {}\n{entries}",
                network.eip, spec.hostname
            )
        }
        None => format!("{local}127.0.1.1 {}\n", spec.hostname),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{DestinationRoute, InstanceNetwork, IsolationLevel};
    use nearpath_types::{Eip, InstanceId};

    #[test]
    fn hosts_names_the_gateway_and_the_instance() {
        let mut spec = SandboxSpec::new(InstanceId(7), IsolationLevel::Root, "/bin/true".into());
        let (eip, gateway) = (Eip([10, 62, 0, 9].into()), [10, 62, 0, 1].into());
        spec.network = Some(InstanceNetwork::new(eip, gateway, None));
        let hosts = hosts_file(&spec);
        assert!(
            hosts.contains("10.62.0.1 gateway") && hosts.contains("10.62.0.9 i7"),
            "{hosts}"
        );
        spec.local_gateway = Some([127, 0, 0, 2].into());
        assert!(
            super::hosts_file(&spec).contains("127.0.0.2 gateway gateway.openfaas\n10.62.0.9 i7"),
            "with a local gateway"
        );
    }

    #[test]
    fn named_destinations_are_in_hosts() {
        let mut spec = SandboxSpec::new(InstanceId(7), IsolationLevel::Root, "/bin/true".into());
        let entries = |last, name: Option<&str>| DestinationRoute {
            address: [10, 61, 0, last].into(),
            prefix_len: 32,
            hostname: name.map(str::to_owned),
        };
        let network = InstanceNetwork::new(Eip([10, 62, 0, 9].into()), [10, 62, 0, 1].into(), None);
        spec.network = Some(InstanceNetwork {
            destinations: vec![entries(2, Some("db.shop")), entries(3, None)],
            ..network
        });
        let hosts = hosts_file(&spec);
        assert!(
            hosts.contains("10.61.0.2 db.shop\n") && !hosts.contains("10.61.0.3"),
            "{hosts}"
        );
        assert!(!resolv_conf(&spec).contains("nameserver"));
        let resolver = InnerSocket::UdpV4("127.0.0.53:53".parse().unwrap());
        spec.network.as_mut().unwrap().inner_sockets = vec![resolver];
        assert_eq!(resolv_conf(&spec), "nameserver 127.0.0.53\n");
    }
}
