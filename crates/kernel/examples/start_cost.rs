//! Measures the phases of a start: `start_cost [STARTS] [AT ONCE] [PAUSE MS]`.
//!
//! Starts instances that run a shell, ends them, and prints median and maximum of each phase. Needs
//! root. Without a pause, starts compete with the kernel's cleanup of earlier instances.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_kernel::cgroup::{InstanceCgroup, NodeCgroups, ResourceLimits};
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sandbox::{
    self, InstanceLauncher, InstanceNetwork, IsolationLevel, LaunchedInstance, SandboxSpec,
    StartNote, ZygoteProgram,
};
use nearpath_types::{Eip, InstanceId};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

type PhaseDurations = BTreeMap<String, Vec<Duration>>;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(sandbox::INIT_ARGUMENT) {
        return sandbox::instance_init();
    }
    match measure_starts() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure_starts() -> io::Result<()> {
    let argument = |n, default| {
        std::env::args()
            .nth(n)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (starts, at_once, pause): (u64, u64, u64) =
        (argument(1, 100), argument(2, 1), argument(3, 300));
    let lab = Arc::new((
        HubNetns::create(GATEWAY).map(Arc::new)?,
        InstanceLauncher::start(ZygoteProgram::default())?,
        NodeCgroups::detect("start-cost"),
    ));
    let mut phases = PhaseDurations::new();
    for round in 0..starts / at_once {
        let one = |n| {
            let lab = lab.clone();
            std::thread::spawn(move || {
                start_instance(&lab.0, &lab.1, &lab.2, round * at_once + n + 2)
            })
        };
        let threads: Vec<_> = (0..at_once).map(one).collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .map_err(|_| io::Error::other("a start panicked"))?
        });
        for running in joined.collect::<io::Result<Vec<_>>>()? {
            for (name, took) in running.end()? {
                phases.entry(name).or_default().push(took);
            }
        }
        // the kernel removes network namespaces asynchronously
        std::thread::sleep(Duration::from_millis(pause));
    }
    lab.2.remove_node_folders();
    print_table(phases);
    Ok(())
}

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);

struct RunningInstance {
    launched: LaunchedInstance,
    cgroup: InstanceCgroup,
    phases: Vec<(String, Duration)>,
}

fn start_instance(
    hub: &Arc<HubNetns>,
    launcher: &InstanceLauncher,
    cgroups: &NodeCgroups,
    id: u64,
) -> io::Result<RunningInstance> {
    let begin = Instant::now();
    let limits = ResourceLimits {
        memory_bytes: Some(64 << 20),
        cpu_millis: Some(1_000),
        pids: Some(100),
    };
    let cgroup = cgroups.create_instance(InstanceId(id), &limits)?;
    let created = begin.elapsed();
    let mut spec = SandboxSpec::new(InstanceId(id), IsolationLevel::Root, "/bin/sh".into());
    spec.arguments = ["-c", "echo ready >&3; exec /bin/sleep 1000"]
        .map(str::to_owned)
        .into();
    spec.cgroup_join_files = cgroup.join_files();
    let eip = Eip(Ipv4Addr::from_bits(GATEWAY.to_bits() + id as u32));
    spec.network = Some(InstanceNetwork::new(eip, GATEWAY, Some(hub.clone())));
    let mut launched = launcher.launch_instance(&spec)?;
    let forked = begin.elapsed();
    let mut phases = vec![
        ("0 cgroup create".into(), created),
        ("1 launch".into(), forked - created),
    ];
    let mut notes = BufReader::new(File::from(launched.notes));
    loop {
        let mut line = String::new();
        notes.read_line(&mut line)?;
        match StartNote::parse_line(&line) {
            Some(StartNote::Phase { name, took }) => phases.push((name, took)),
            Some(StartNote::Ready) => break,
            other => return Err(io::Error::other(format!("{line}: {other:?}"))),
        }
    }
    phases.push(("9 until it runs".into(), begin.elapsed()));
    launched.notes = notes.into_inner().into();
    Ok(RunningInstance {
        launched,
        cgroup,
        phases,
    })
}

impl RunningInstance {
    fn end(mut self) -> io::Result<Vec<(String, Duration)>> {
        let begin = Instant::now();
        pidfd_send_signal(&self.launched.pidfd, Signal::KILL)?;
        waitid(
            WaitId::PidFd(self.launched.pidfd.as_fd()),
            WaitIdOptions::EXITED,
        )?;
        self.phases.push(("end: kill".into(), begin.elapsed()));
        let begin = Instant::now();
        self.cgroup.remove_now()?;
        self.phases.push(("end: cgroup".into(), begin.elapsed()));
        Ok(self.phases)
    }
}

fn print_table(phases: PhaseDurations) {
    println!(
        "{:<20} {:>6} {:>10} {:>10} {:>10}  (microseconds)",
        "phase", "n", "p50", "p90", "worst"
    );
    for (name, mut all) in phases {
        all.sort();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_micros();
        println!(
            "{name:<20} {:>6} {:>10} {:>10} {:>10}",
            all.len(),
            at(0.5),
            at(0.9),
            at(1.0)
        );
    }
}
