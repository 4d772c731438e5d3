//! What an instance sees and may do, asked from inside on the real kernel.
#![allow(clippy::unwrap_used)] // in the helpers, too

mod lab;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use lab::{Lab, kill};
use nearpath_kernel::sandbox::{Bind, Note, Spec};
use nearpath_testkit::need_root;

#[test]
fn it_sees_only_its_own_files() {
    need_root!();
    let lab = Lab::new();
    let ended =
        lab.run(&lab.shell("ls -a / /home /etc /dev /run; ls /root /work /sys /boot /var/lib /home/app/function"));
    for hidden in ["root", "work", "sys", "boot", "shadow", "mem", "sda"] {
        assert!(!ended.out.lines().any(|line| line == hidden), "{hidden} shows: {ended:?}");
    }
    for shown in ["usr", "tmp", "proc", "hosts", "null", "nearpath"] {
        assert!(ended.out.lines().any(|line| line == shown), "{shown} is missing: {ended:?}");
    }
    assert_eq!(ended.err.matches("cannot access").count(), 6, "{ended:?}");
}

#[test]
fn it_sees_only_its_own_processes_and_mounts() {
    need_root!();
    let lab = Lab::new();
    let ended = lab.run(&lab.shell(
        "echo $$; ls /proc | grep -c '^[0-9]'; hostname; cut -d' ' -f5 /proc/self/mountinfo; cat /proc/self/cgroup",
    ));
    let mut lines = ended.out.lines();
    assert_eq!(lines.next(), Some("1"), "{ended:?}");
    assert!(lines.next().unwrap().parse::<u32>().unwrap() <= 3, "{ended:?}");
    assert!(lines.next().unwrap().starts_with('i'), "{ended:?}");
    assert!(!ended.out.contains("/sys") && !ended.out.contains("test-"), "{ended:?}");
}

#[test]
fn it_has_no_power() {
    need_root!();
    let lab = Lab::new();
    let spec = lab.shell("cat /proc/self/status; ls -l /proc/self/fd | wc -l; ulimit -c; umask");
    let ended = lab.run(&spec);
    let uid = spec.uid.to_string();
    let has = |name: &str, value: &str| {
        let line = ended.out.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert_eq!(line.split_whitespace().nth(1), Some(value), "{ended:?}");
    };
    for (name, value) in [("Uid:", uid.as_str()), ("Gid:", &uid), ("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
        has(name, value);
    }
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        has(set, "0000000000000000");
    }
    assert!(ended.out.lines().any(|line| line.trim_end() == "Groups:"), "{ended:?}");
    assert!(ended.out.ends_with("\n0\n0022\n"), "{ended:?}");
}

#[test]
fn it_inherits_only_five_descriptors_and_its_own_environment() {
    need_root!();
    let lab = Lab::new();
    let mut spec =
        lab.python("import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1], sorted(os.environ))");
    spec.environment.insert("COLOUR".into(), "blue".into());
    let ended = lab.run(&spec);
    assert!(ended.out.starts_with("[0, 1, 2, 3, 4] ['COLOUR', "), "{ended:?}");
    assert!(!ended.out.contains("CARGO"), "{ended:?}");
}

#[test]
fn a_read_only_root_takes_no_writes() {
    need_root!();
    let lab = Lab::new();
    let script = "for f in /x /etc/x /usr/x /home/app/x /dev/x /run/x /proc/self/comm; do echo x 2>&- > $f && echo wrote $f; done; \
                  echo x > /tmp/x && echo x > /dev/shm/x && echo x > /dev/null && echo x > /dev/stderr && echo fine";
    let ended = lab.run(&lab.shell(script));
    assert_eq!(ended.out, "fine\n", "{ended:?}");
}

#[test]
fn a_writable_root_is_private_and_small() {
    need_root!();
    let lab = Lab::new();
    let mut spec = lab.shell("echo x > /home/app/x && echo x > /x && echo fine; head -c 99m /dev/zero > /y || echo full; echo x > /usr/x || echo ro");
    spec.read_only_root = false;
    let ended = lab.run(&spec);
    assert_eq!(ended.out, "fine\nfull\nro\n", "{ended:?}");
    assert!(!std::path::Path::new("/home/app/x").exists());
}

#[test]
fn the_functions_folder_is_there_to_read() {
    need_root!();
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("handler.py"), "cake").unwrap();
    let mut spec = lab.shell("pwd; cat handler.py; echo x > handler.py || echo refused");
    spec.binds = vec![Bind { source: folder.path().into(), target: Spec::FUNCTION.into(), writable: false }];
    spec.workdir = Spec::FUNCTION.into();
    let ended = lab.run(&spec);
    assert_eq!(ended.out, "/home/app/function\ncakerefused\n", "{ended:?}");
}

#[test]
fn secrets_are_its_own() {
    need_root!();
    let lab = Lab::new();
    let mut spec = lab.shell("cd /var/openfaas/secrets; stat -c '%a %u' . key; cat key; echo x >> key || echo refused");
    spec.secrets.insert("key".into(), b"\xffbytes\n".to_vec());
    spec.uid = 204_321;
    let ended = lab.run(&spec);
    assert!(ended.out.starts_with("700 204321\n400 204321\n") && ended.out.ends_with("bytes\nrefused\n"), "{ended:?}");
    let other = lab.run(&lab.shell("ls /var/openfaas/secrets"));
    assert_eq!(other.out, "", "{other:?}");
}

#[test]
fn it_reaches_the_gateway_and_nothing_else() {
    need_root!();
    let lab = Lab::new();
    let host = TcpListener::bind("0.0.0.0:0").unwrap();
    let switch = lab.switch.clone();
    let gateway = std::thread::spawn(move || {
        switch.enter().unwrap();
        TcpListener::bind((lab::GATEWAY, 8080)).unwrap()
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
    let ended = lab.run(&spec);
    let eip = spec.network.unwrap().eip;
    assert_eq!(ended.out, format!("{eip} no no no\nno\n"), "{ended:?}");
    let (_, caller) = gateway.accept().unwrap();
    assert_eq!(caller.ip(), eip.0);
    kill(running);
}

#[test]
fn what_fails_is_told_with_its_step() {
    need_root!();
    let lab = Lab::new();
    let mut spec = lab.shell("true");
    spec.binds = vec![Bind { source: "/nowhere".into(), target: "/x".into(), writable: false }];
    let ended = lab.run(&spec);
    let Some(Note::Failed(why)) = ended.notes.last() else { panic!("{ended:?}") };
    assert!(why.starts_with("root: /nowhere: No such file"), "{why}");
    let mut spec = lab.again(&spec);
    spec.binds.clear();
    spec.uid = 0;
    let ended = lab.run(&spec);
    assert!(matches!(ended.notes.last(), Some(Note::Failed(why)) if why.contains("cannot run as root")), "{ended:?}");
}

#[test]
fn phases_are_told_in_their_order() {
    need_root!();
    let lab = Lab::new();
    let ended = lab.run(&lab.shell("true"));
    let names = ended.notes.iter().map(|note| match note {
        Note::Phase { name, .. } => name.as_str(),
        other => panic!("{other:?}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), ["cgroup", "network", "root", "lockdown"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
