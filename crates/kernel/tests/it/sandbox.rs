//! Files, processes, privileges and network of an instance, observed from inside on the real
//! kernel.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::cgroups::{set_limits, test_node};
use crate::fixture::{Lab, kill};
use nearpath_kernel::cgroup::ResourceLimits;
use nearpath_kernel::sandbox::{BindMount, SandboxSpec, StartNote};
use nearpath_testkit::need_root;

#[test]
fn an_instance_sees_only_its_own_files() {
    need_root!();
    let lab = Lab::new();
    let result = lab.run(&lab.shell(
        "ls -a / /home /etc /dev /run; ls /root /work /sys /boot /var/lib /home/app/function",
    ));
    for hidden in ["root", "work", "sys", "boot", "shadow", "mem", "sda"] {
        assert!(
            !result.out.lines().any(|line| line == hidden),
            "{hidden} shows: {result:?}"
        );
    }
    for listed in ["usr", "tmp", "proc", "hosts", "null", "nearpath"] {
        assert!(
            result.out.lines().any(|line| line == listed),
            "{listed} is missing: {result:?}"
        );
    }
    assert_eq!(result.err.matches("cannot access").count(), 6, "{result:?}");
}

#[test]
fn an_instance_sees_only_its_own_processes_and_mounts() {
    need_root!();
    let (lab, cgroups) = (Lab::new(), test_node("seen"));
    let mut spec = lab.shell(
        "echo $$; ls /proc | grep -c '^[0-9]'; hostname; cut -d' ' -f5 /proc/self/mountinfo; cat /proc/self/cgroup",
    );
    // Without a cgroup namespace the instance would read this node's name, `test-seen-…`.
    let cgroup = set_limits(&cgroups, &mut spec, ResourceLimits::default());
    let result = lab.run(&spec);
    cgroup.remove_now().unwrap();
    let mut lines = result.out.lines();
    assert_eq!(lines.next(), Some("1"), "{result:?}");
    assert!(
        lines.next().unwrap().parse::<u32>().unwrap() <= 3,
        "{result:?}"
    );
    assert!(lines.next().unwrap().starts_with('i'), "{result:?}");
    assert!(
        !result.out.contains("/sys") && !result.out.contains("test-"),
        "{result:?}"
    );
}

#[test]
fn an_instance_has_no_privileges() {
    need_root!();
    let lab = Lab::new();
    let spec = lab.shell("cat /proc/self/status; ls -l /proc/self/fd | wc -l; ulimit -c; umask");
    let result = lab.run(&spec);
    let uid = spec.uid.to_string();
    let has = |name: &str, value: &str| {
        let line = result
            .out
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        assert_eq!(line.split_whitespace().nth(1), Some(value), "{result:?}");
    };
    for (name, value) in [
        ("Uid:", uid.as_str()),
        ("Gid:", &uid),
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
    ] {
        has(name, value);
    }
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        has(set, "0000000000000000");
    }
    assert!(
        result.out.lines().any(|line| line.trim_end() == "Groups:"),
        "{result:?}"
    );
    assert!(result.out.ends_with("\n0\n0022\n"), "{result:?}");
}

#[test]
fn an_instance_inherits_five_descriptors_and_its_environment() {
    need_root!();
    let lab = Lab::new();
    let mut spec =
        lab.python("import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1], sorted(os.environ))");
    spec.environment.insert("COLOUR".into(), "blue".into());
    let result = lab.run(&spec);
    assert!(
        result.out.starts_with("[0, 1, 2, 3, 4] ['COLOUR', "),
        "{result:?}"
    );
    assert!(!result.out.contains("CARGO"), "{result:?}");
}

#[test]
fn a_read_only_root_cannot_be_written() {
    need_root!();
    let lab = Lab::new();
    let script = "for f in /x /etc/x /usr/x /home/app/x /dev/x /run/x /proc/self/comm; do echo x 2>&- > $f && echo wrote $f; done; \
                  echo x > /tmp/x && echo x > /dev/shm/x && echo x > /dev/null && echo x > /dev/stderr && echo fine";
    let result = lab.run(&lab.shell(script));
    assert_eq!(result.out, "fine\n", "{result:?}");
}

#[test]
fn a_writable_root_is_private_and_small() {
    need_root!();
    let lab = Lab::new();
    let mut spec = lab.shell("echo x > /home/app/x && echo x > /x && echo fine; head -c 99m /dev/zero > /y || echo full; echo x > /usr/x || echo ro");
    spec.read_only_root = false;
    let result = lab.run(&spec);
    assert_eq!(result.out, "fine\nfull\nro\n", "{result:?}");
    assert!(!std::path::Path::new("/home/app/x").exists());
}

#[test]
fn the_function_folder_is_read_only() {
    need_root!();
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("handler.py"), "cake").unwrap();
    let mut spec = lab.shell("pwd; cat handler.py; echo x > handler.py || echo refused");
    spec.binds = vec![BindMount {
        source: folder.path().into(),
        target: SandboxSpec::FUNCTION_DIR.into(),
        writable: false,
    }];
    spec.workdir = SandboxSpec::FUNCTION_DIR.into();
    let result = lab.run(&spec);
    assert_eq!(
        result.out, "/home/app/function\ncakerefused\n",
        "{result:?}"
    );
}

#[test]
fn a_bind_covers_a_file_of_the_host_for_its_instance_alone() {
    need_root!();
    let host = std::path::Path::new("/etc/ssl/openssl.cnf");
    if !host.exists() {
        nearpath_testkit::skip!("/etc/ssl/openssl.cnf is missing: apt-get install openssl")
    }
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("own.cnf");
    std::fs::write(&source, "own").unwrap();
    let mut spec =
        lab.shell("cat /etc/ssl/openssl.cnf; echo x > /etc/ssl/openssl.cnf || echo refused");
    spec.binds = vec![BindMount {
        source,
        target: host.into(),
        writable: false,
    }];
    let result = lab.run(&spec);
    assert_eq!(result.out, "ownrefused\n", "{result:?}");
    assert_ne!(std::fs::read(host).unwrap(), b"own");
}

#[test]
fn secrets_are_visible_only_to_their_instance() {
    need_root!();
    let lab = Lab::new();
    let mut spec = lab.shell(
        "cd /var/openfaas/secrets; stat -c '%a %u' . key; cat key; echo x >> key || echo refused",
    );
    spec.secrets.insert("key".into(), b"\xffbytes\n".to_vec());
    spec.uid = 204_321;
    let result = lab.run(&spec);
    assert!(
        result.out.starts_with("700 204321\n400 204321\n")
            && result.out.ends_with("bytes\nrefused\n"),
        "{result:?}"
    );
    let other = lab.run(&lab.shell("ls /var/openfaas/secrets"));
    assert_eq!(other.out, "", "{other:?}");
}

#[test]
fn an_instance_reaches_only_the_gateway() {
    need_root!();
    let lab = Lab::new();
    let host = TcpListener::bind("0.0.0.0:0").unwrap();
    let hub = lab.hub.clone();
    let gateway = std::thread::spawn(move || {
        hub.enter().unwrap();
        TcpListener::bind((crate::fixture::GATEWAY, 8080)).unwrap()
    });
    let gateway = gateway.join().unwrap();
    let server = "import socket; s = socket.create_server(('0.0.0.0', 8080)); print('up', flush=True); s.accept()";
    let neighbour = lab.python(server);
    let (running, _) = lab.start(&neighbour);
    let script = format!(
        "import socket
def reach(host, port):
    s = socket.socket(); s.settimeout(0.5)
    try: s.connect((host, port)); return s.getsockname()[0]
    except OSError: return 'no'
print(reach('gateway', 8080), reach('127.0.0.1', {port}), reach('{neighbour}', 8080), reach('192.0.2.1', 80))
try: print(reach('gateway', {port}))
except Exception as e: print(e)",
        port = host.local_addr().unwrap().port(),
        neighbour = neighbour.network.as_ref().unwrap().eip,
    );
    let spec = lab.python(&script);
    let result = lab.run(&spec);
    let eip = spec.network.unwrap().eip;
    assert_eq!(result.out, format!("{eip} no no no\nno\n"), "{result:?}");
    let (_, caller) = gateway.accept().unwrap();
    assert_eq!(caller.ip(), eip.0);
    kill(running);
}

/// ARP on a busy machine cost a first call a second, when the queue had not started yet.
#[test]
fn both_ends_of_a_pair_have_a_permanent_entry_of_the_other() {
    need_root!();
    let lab = Lab::new();
    let inside = lab.run(&lab.shell("cat /proc/net/arp"));
    let gateway = crate::fixture::GATEWAY.to_string();
    assert!(has_permanent_entry(&inside.out, &gateway), "{inside:?}");
    let spec = lab.shell("echo; exec sleep 600");
    let (running, _) = lab.start(&spec);
    let hub = lab.hub.clone();
    let entries = std::thread::spawn(move || {
        hub.enter().unwrap();
        std::fs::read_to_string("/proc/thread-self/net/arp").unwrap()
    });
    let entries = entries.join().unwrap();
    let eip = spec.network.as_ref().unwrap().eip.to_string();
    assert!(has_permanent_entry(&entries, &eip), "{entries}");
    kill(running);
}

/// Returns whether `/proc/net/arp` has an address with the flags `ATF_COM` and `ATF_PERM`; see
/// `arp(7)`.
fn has_permanent_entry(entries: &str, address: &str) -> bool {
    let mut lines = entries.lines().map(str::split_whitespace);
    lines.any(|mut line| line.next() == Some(address) && line.nth(1) == Some("0x6"))
}

#[test]
fn a_failure_names_its_step() {
    need_root!();
    let lab = Lab::new();
    let mut spec = lab.shell("true");
    spec.binds = vec![BindMount {
        source: "/nowhere".into(),
        target: "/x".into(),
        writable: false,
    }];
    let result = lab.run(&spec);
    let Some(StartNote::Failed(why)) = result.notes.last() else {
        panic!("{result:?}")
    };
    assert!(why.starts_with("root: /nowhere: No such file"), "{why}");
    let mut spec = lab.again(&spec);
    spec.binds.clear();
    spec.uid = 0;
    let result = lab.run(&spec);
    assert!(
        matches!(result.notes.last(), Some(StartNote::Failed(why)) if why.contains("cannot run as root")),
        "{result:?}"
    );
}

#[test]
fn phases_are_reported_in_order() {
    need_root!();
    let lab = Lab::new();
    let result = lab.run(&lab.shell("true"));
    let names = result.notes.iter().map(|note| match note {
        StartNote::Phase { name, .. } => name.as_str(),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["cgroup", "network", "root", "lockdown"]
    );
    assert_eq!(result.code, Some(0), "{result:?}");
}
