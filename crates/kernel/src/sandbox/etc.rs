//! `/etc` of an instance: who there is, what names mean, and what programs need of the host's.

use std::fs;
use std::io;
use std::path::Path;

use super::hatch::Hatch;
use super::spec::Spec;

/// Taken from the host, where it has them: what programs need to start, to verify TLS and to know the time.
pub(super) const FROM_HOST: &[&str] = &[
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

/// Writes the files that are the instance's own, below the working directory.
pub(super) fn write(spec: &Spec, uid: u32, gid: u32) -> io::Result<()> {
    fs::create_dir_all("etc")?;
    for (name, text) in files(spec, uid, gid) {
        fs::write(Path::new("etc").join(name), text)?;
    }
    Ok(())
}

fn files(spec: &Spec, uid: u32, gid: u32) -> [(&'static str, String); 6] {
    let app = if uid == 0 { "root" } else { "app" }; // in a user namespace the only user is called 0
    let root = if uid == 0 { String::new() } else { "root:x:0:0:root:/:/usr/sbin/nologin\n".into() };
    let group = if gid == 0 { "root:x:0:\n".into() } else { format!("root:x:0:\napp:x:{gid}:\n") };
    [
        ("passwd", format!("{root}{app}:x:{uid}:{gid}::/home/app:/bin/sh\n")),
        ("group", group),
        ("hostname", format!("{}\n", spec.hostname)),
        ("hosts", hosts(spec)),
        ("resolv.conf", resolver(spec)),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".into()),
    ]
}

/// The node answers at a hatch, where there is one.
fn resolver(spec: &Spec) -> String {
    let hatches = spec.network.iter().flat_map(|network| &network.hatches);
    let names = hatches.filter(|hatch| matches!(hatch, Hatch::Datagrams(_))).map(|hatch| hatch.address().ip()).next();
    match names {
        Some(at) => format!("nameserver {at}\n"),
        None => "# No name server is within reach: names are in /etc/hosts.\noptions timeout:1 attempts:1\n".into(),
    }
}

fn hosts(spec: &Spec) -> String {
    let local = "127.0.0.1 localhost\n";
    match &spec.network {
        Some(network) => {
            let gateway = spec.pickup.unwrap_or(network.gateway);
            let known =
                network.destinations.iter().filter_map(|one| Some(format!("{} {}\n", one.address, one.name.as_ref()?)));
            let known: String = known.collect();
            format!("{local}{gateway} gateway gateway.openfaas\n{} {}\n{known}", network.eip, spec.hostname)
        }
        None => format!("{local}127.0.1.1 {}\n", spec.hostname),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{Destination, Isolation, Network};
    use nearpath_types::{Eip, InstanceId};

    #[test]
    fn the_gateway_has_a_name() {
        let mut spec = Spec::new(InstanceId(7), Isolation::Root, "/bin/true".into());
        let (eip, gateway) = (Eip([10, 62, 0, 9].into()), [10, 62, 0, 1].into());
        spec.network = Some(Network::new(eip, gateway, None));
        let hosts = hosts(&spec);
        assert!(hosts.contains("10.62.0.1 gateway") && hosts.contains("10.62.0.9 i7"), "{hosts}");
        spec.pickup = Some([127, 0, 0, 2].into());
        assert!(super::hosts(&spec).contains("127.0.0.2 gateway gateway.openfaas\n10.62.0.9 i7"), "picked up");
    }

    #[test]
    fn names_of_destinations_stand_for_addresses() {
        let mut spec = Spec::new(InstanceId(7), Isolation::Root, "/bin/true".into());
        let known = |last, name: Option<&str>| Destination {
            address: [10, 61, 0, last].into(),
            length: 32,
            name: name.map(str::to_owned),
        };
        let network = Network::new(Eip([10, 62, 0, 9].into()), [10, 62, 0, 1].into(), None);
        spec.network = Some(Network { destinations: vec![known(2, Some("db.shop")), known(3, None)], ..network });
        let hosts = hosts(&spec);
        assert!(hosts.contains("10.61.0.2 db.shop\n") && !hosts.contains("10.61.0.3"), "{hosts}");
        assert!(!resolver(&spec).contains("nameserver"));
        let names = Hatch::Datagrams("127.0.0.53:53".parse().unwrap());
        spec.network.as_mut().unwrap().hatches = vec![names];
        assert_eq!(resolver(&spec), "nameserver 127.0.0.53\n");
    }
}
