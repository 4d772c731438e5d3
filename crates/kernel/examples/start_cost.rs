//! Where the time of a start goes: `start_cost [STARTS] [AT ONCE] [PAUSE MS]` starts instances that run a shell, ends them, and
//! prints the median and the worst of each phase. As root. Without a pause, starts meet the kernel's tidying up of earlier ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_kernel::cgroup::{Cgroup, Cgroups, Limits};
use nearpath_kernel::sandbox::{self, Isolation, Launched, Launcher, Network, Note, Spec};
use nearpath_kernel::switch::Switch;
use nearpath_types::{Eip, InstanceId};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

type Phases = BTreeMap<String, Vec<Duration>>;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(sandbox::INIT_ARGUMENT) {
        return sandbox::instance_init();
    }
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> io::Result<()> {
    let argument = |n, default| std::env::args().nth(n).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (starts, at_once, pause): (u64, u64, u64) = (argument(1, 100), argument(2, 1), argument(3, 300));
    let lab = Arc::new((Switch::create(GATEWAY).map(Arc::new)?, Launcher::start()?, Cgroups::detect("start-cost")));
    let mut phases = Phases::new();
    for round in 0..starts / at_once {
        let one = |n| {
            let lab = lab.clone();
            std::thread::spawn(move || start(&lab.0, &lab.1, &lab.2, round * at_once + n + 2))
        };
        let threads: Vec<_> = (0..at_once).map(one).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| io::Error::other("a start panicked"))?);
        for running in joined.collect::<io::Result<Vec<_>>>()? {
            for (name, took) in running.end()? {
                phases.entry(name).or_default().push(took);
            }
        }
        std::thread::sleep(Duration::from_millis(pause)); // the kernel takes network namespaces down behind our back
    }
    lab.2.leave();
    print(phases);
    Ok(())
}

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);

struct Running {
    launched: Launched,
    cgroup: Cgroup,
    phases: Vec<(String, Duration)>,
}

fn start(switch: &Arc<Switch>, launcher: &Launcher, cgroups: &Cgroups, id: u64) -> io::Result<Running> {
    let begin = Instant::now();
    let limits = Limits { memory_bytes: Some(64 << 20), cpu_millis: Some(1_000), pids: Some(100) };
    let cgroup = cgroups.create(InstanceId(id), &limits)?;
    let made = begin.elapsed();
    let mut spec = Spec::new(InstanceId(id), Isolation::Root, "/bin/sh".into());
    spec.arguments = ["-c", "echo ready >&3; exec /bin/sleep 1000"].map(str::to_owned).into();
    spec.cgroup = cgroup.join_files();
    let eip = Eip(Ipv4Addr::from_bits(GATEWAY.to_bits() + id as u32));
    spec.network = Some(Network::new(eip, GATEWAY, Some(switch.clone())));
    let mut launched = launcher.launch(&spec)?;
    let forked = begin.elapsed();
    let mut phases = vec![("0 cgroup create".into(), made), ("1 launch".into(), forked - made)];
    let mut notes = BufReader::new(File::from(launched.notes));
    loop {
        let mut line = String::new();
        notes.read_line(&mut line)?;
        match Note::parse(&line) {
            Some(Note::Phase { name, took }) => phases.push((name, took)),
            Some(Note::Ready) => break,
            other => return Err(io::Error::other(format!("{line}: {other:?}"))),
        }
    }
    phases.push(("9 until it runs".into(), begin.elapsed()));
    launched.notes = notes.into_inner().into();
    Ok(Running { launched, cgroup, phases })
}

impl Running {
    fn end(mut self) -> io::Result<Vec<(String, Duration)>> {
        let begin = Instant::now();
        pidfd_send_signal(&self.launched.pidfd, Signal::KILL)?;
        waitid(WaitId::PidFd(self.launched.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        self.phases.push(("end: kill".into(), begin.elapsed()));
        let begin = Instant::now();
        self.cgroup.remove()?;
        self.phases.push(("end: cgroup".into(), begin.elapsed()));
        Ok(self.phases)
    }
}

fn print(phases: Phases) {
    println!("{:<20} {:>6} {:>10} {:>10} {:>10}  (microseconds)", "phase", "n", "p50", "p90", "worst");
    for (name, mut all) in phases {
        all.sort();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_micros();
        println!("{name:<20} {:>6} {:>10} {:>10} {:>10}", all.len(), at(0.5), at(0.9), at(1.0));
    }
}
