//! The two weaker isolation levels: a user namespace for a node without root, and none.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::fixture::Lab;
use nearpath_kernel::sandbox::{BindMount, IsolationLevel, SandboxSpec};
use nearpath_testkit::{copy_program, need_root, skip};

const UNPRIVILEGED_UID: u32 = 65_534;

/// Runs a node without root whose instance runs a script; returns the output.
fn run_unprivileged(script: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The build folder may be unreadable for other users
    let program = folder.path().join("instance");
    copy_program(crate::fixture::instance_program(), &program);
    let mut command = Command::new(program);
    command
        .args(["user", "/bin/sh", "-c", script])
        .uid(UNPRIVILEGED_UID)
        .gid(UNPRIVILEGED_UID)
        .current_dir("/");
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    match output.status.success() {
        true => Some(format!("{out}{err}")),
        false if err.contains("not permitted") => None,
        false => panic!("{out}{err}"),
    }
}

#[test]
fn a_user_namespace_isolates_an_instance() {
    need_root!(); // to become an unprivileged user
    let script = "echo pid $$; grep -E 'CapEff|CapBnd|Seccomp:' /proc/self/status; ls -d /root /sys /home/app; \
                  echo x > /etc/x; cat /proc/net/dev; unshare -n true";
    let Some(out) = run_unprivileged(script) else {
        skip!("user namespaces are forbidden on this machine")
    };
    for part in [
        "pid 1\n",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "Seccomp:\t2",
        "/home/app\n",
        "eth0:",
    ] {
        assert!(out.contains(part), "{part:?} is missing: {out}");
    }
    for refused in [
        "access '/root'",
        "access '/sys'",
        "Read-only file system",
        "unshare failed: Operation not permitted",
    ] {
        assert!(out.contains(refused), "{refused:?} is missing: {out}");
    }
    assert!(out.contains("phase lockdown"), "{out}");
}

#[test]
fn without_namespaces_an_instance_has_no_privileges() {
    need_root!(); // for the lab's hub
    let lab = Lab::new();
    let (folder, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let script = "pwd; cat $TMPDIR/secrets/key; grep -E 'NoNewPrivs|CapEff|Seccomp:' /proc/self/status; unshare -m true || echo refused";
    let mut spec = lab.shell(script);
    spec.isolation = IsolationLevel::None;
    spec.binds = vec![BindMount {
        source: folder.path().into(),
        target: SandboxSpec::FUNCTION_DIR.into(),
        writable: false,
    }];
    spec.workdir = SandboxSpec::FUNCTION_DIR.into();
    spec.scratch = Some(scratch.path().into());
    spec.secrets.insert("key".into(), b"secret\n".to_vec());
    let result = lab.run(&spec);
    let expected = format!(
        "{}\nsecret\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nrefused\n",
        folder.path().display()
    );
    assert_eq!(result.out, expected, "{result:?}");
}

#[test]
fn an_instance_ends_with_its_launcher() {
    need_root!();
    // Without a PID namespace the watchdog is only asked to end, so that it ends the tenant's
    // processes first.
    for (isolation, signal) in [(IsolationLevel::Root, 9), (IsolationLevel::None, 15)] {
        let lab = Lab::new();
        let mut spec = lab.shell("echo up; exec sleep 60");
        spec.isolation = isolation;
        let (running, _) = lab.start(&spec);
        drop(lab.launcher);
        assert_eq!(crate::fixture::finish(running).signal, Some(signal));
    }
}

#[test]
fn a_killed_zygote_is_replaced() {
    need_root!();
    let lab = Lab::new();
    let (running, _) = lab.start(&lab.shell("echo up; exec sleep 60"));
    lab.kill_zygote();
    let result = lab.run(&lab.shell("echo again"));
    assert_eq!(result.out, "again\n", "{result:?}");
    crate::fixture::kill(running);
}
