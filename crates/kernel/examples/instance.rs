//! The program that tests start as an instance, and as a whole node that can be killed.
//!
//! `instance instance-init` is the child's side. `instance node PROGRAM ARGUMENT…` starts one instance in a switch of its
//! own, prints the instance's pid and waits to be killed. `instance user …` does the same in a user namespace.

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, io};

use nearpath_kernel::cgroup::{Cgroups, Limits};
use nearpath_kernel::sandbox::{self, Isolation, Launcher, Network, Spec};
use nearpath_kernel::switch::Switch;
use nearpath_types::{Eip, InstanceId};

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some(sandbox::INIT_ARGUMENT) => return sandbox::instance_init(),
        Some("node") if arguments.len() > 1 => node(&arguments[1..], Isolation::Root),
        Some("user") if arguments.len() > 1 => {
            sandbox::enter_user_namespace().and_then(|()| node(&arguments[1..], Isolation::UserNamespace))
        }
        _ => Err(io::Error::other("see the head of examples/instance.rs")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn node(program: &[String], isolation: Isolation) -> io::Result<()> {
    let gateway = Ipv4Addr::new(10, 62, 0, 1);
    let switch = Arc::new(Switch::create(gateway)?);
    let launcher = Launcher::start()?;
    let name = env::var("NODE").unwrap_or_else(|_| format!("test-{}", std::process::id()));
    let cgroup = Cgroups::detect(&name).create(InstanceId(1), &Limits { pids: Some(50), ..Limits::default() })?;
    let mut spec = Spec::new(InstanceId(1), isolation, program[0].clone().into());
    spec.arguments = program[1..].to_vec();
    spec.cgroup = cgroup.join_files();
    spec.network = Some(Network::new(Eip(Ipv4Addr::new(10, 62, 0, 2)), gateway, Some(switch)));
    let launched = launcher.launch(&spec)?;
    println!("{}", launched.pid);
    io::stdout().flush()?;
    let out = std::thread::spawn(move || io::copy(&mut std::fs::File::from(launched.stdout), &mut io::stdout()));
    let err = std::thread::spawn(move || io::copy(&mut std::fs::File::from(launched.stderr), &mut io::stderr()));
    io::copy(&mut std::fs::File::from(launched.notes), &mut io::stderr())?;
    let _ = (out.join(), err.join());
    Ok(())
}
