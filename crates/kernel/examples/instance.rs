//! The program that tests run as an instance, and as a whole node to kill.
//!
//! `instance instance-init` is the child's side. `instance node PROGRAM ARGUMENT…` starts one
//! instance in a hub of its own, prints its pid and waits to be killed. `instance user …` does the
//! same in a user namespace.

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, io};

use nearpath_kernel::cgroup::{NodeCgroups, ResourceLimits};
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sandbox::{
    self, InstanceLauncher, InstanceNetwork, IsolationLevel, SandboxSpec, ZygoteProgram,
};
use nearpath_types::{Eip, InstanceId};

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some(sandbox::INIT_ARGUMENT) => return sandbox::instance_init(),
        Some("node") if arguments.len() > 1 => run_node(&arguments[1..], IsolationLevel::Root),
        Some("user") if arguments.len() > 1 => sandbox::enter_user_namespace()
            .and_then(|()| run_node(&arguments[1..], IsolationLevel::UserNamespace)),
        _ => Err(io::Error::other("see the head of examples/instance.rs")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run_node(program: &[String], isolation: IsolationLevel) -> io::Result<()> {
    let gateway = Ipv4Addr::new(10, 62, 0, 1);
    let hub = Arc::new(HubNetns::create(gateway)?);
    let launcher = InstanceLauncher::start(ZygoteProgram::default())?;
    let name = env::var("NODE").unwrap_or_else(|_| format!("test-{}", std::process::id()));
    let cgroup = NodeCgroups::detect(&name).create_instance(
        InstanceId(1),
        &ResourceLimits {
            pids: Some(50),
            ..ResourceLimits::default()
        },
    )?;
    let mut spec = SandboxSpec::new(InstanceId(1), isolation, program[0].clone().into());
    spec.arguments = program[1..].to_vec();
    spec.cgroup_join_files = cgroup.join_files();
    spec.network = Some(InstanceNetwork::new(
        Eip(Ipv4Addr::new(10, 62, 0, 2)),
        gateway,
        Some(hub),
    ));
    let launched = launcher.launch_instance(&spec)?;
    println!("{}", launched.pid);
    io::stdout().flush()?;
    let out = std::thread::spawn(move || {
        io::copy(&mut std::fs::File::from(launched.stdout), &mut io::stdout())
    });
    let err = std::thread::spawn(move || {
        io::copy(&mut std::fs::File::from(launched.stderr), &mut io::stderr())
    });
    io::copy(&mut std::fs::File::from(launched.notes), &mut io::stderr())?;
    let _ = (out.join(), err.join());
    Ok(())
}
