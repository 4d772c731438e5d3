//! The first seat of a circle: it makes what goes around, and measures how long that takes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::bare::Bare;
use super::carried::Carried;
use super::message::Messages;
use super::party::pin;
use super::{Circle, Lane, Seat, Variant};
use crate::compare::Sample;
use crate::cpu::Moment;

/// A circle in which nothing moves for so long is broken.
const STALL: Duration = Duration::from_secs(5);

/// What a circle looks like and how long it is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) parties: u16,
    /// On two processors in turn, or all on one.
    pub(crate) cores: usize,
    pub(crate) in_flight: u64,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
}

/// Starts the other parties, measures, and ends them.
pub(crate) fn measure(plan: Plan, variant: Variant) -> io::Result<Sample> {
    let before = sched_getaffinity(None)?;
    pin(&[0])?;
    let outcome = run(plan, variant);
    pin(&(0..CpuSet::MAX_CPU)
        .filter(|&core| before.is_set(core))
        .collect::<Vec<_>>())?;
    outcome
}

fn run(plan: Plan, variant: Variant) -> io::Result<Sample> {
    let circle = Circle::create(plan.parties, variant)?;
    let mut others = (1..plan.parties)
        .map(|k| spawn(&circle, k, plan, variant))
        .collect::<io::Result<Vec<_>>>()?;
    let mut fds = circle
        .fds(0)
        .into_iter()
        .map(|fd| fd.try_clone_to_owned())
        .collect::<io::Result<Vec<_>>>()?;
    let seat = Seat::open(&mut fds.drain(..), 0, plan.parties, variant)?;
    let sample = match variant {
        Variant::Bare => drive(Bare::new(&seat)?, seat, plan),
        Variant::Sockmap => drive(Carried::new(&seat)?, seat, plan),
        _ => drive(Messages::new(&seat), seat, plan),
    };
    circle.close();
    for other in &mut others {
        if sample.is_err() {
            let _ = other.kill(); // it may hang as the circle does
        }
        other.wait()?;
    }
    sample
}

fn spawn(circle: &Circle, seat: u16, plan: Plan, variant: Variant) -> io::Result<Child> {
    // Copies without close-on-exec, for as long as it takes to start the child.
    let copies = circle
        .fds(seat.into())
        .into_iter()
        .map(rustix::io::dup)
        .collect::<Result<Vec<OwnedFd>, _>>()?;
    let numbers: Vec<String> = copies.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let name = clap::ValueEnum::to_possible_value(&variant).expect("no variant is hidden");
    Command::new(std::env::current_exe()?)
        .args([
            "ring-party",
            "--variant",
            name.get_name(),
            "--fds",
            &numbers.join(","),
        ])
        .args([
            "--seat",
            &seat.to_string(),
            "--of",
            &plan.parties.to_string(),
        ])
        .args(["--core", &(usize::from(seat) % plan.cores).to_string()])
        .spawn()
}

fn drive(lane: impl Lane, seat: Seat, plan: Plan) -> io::Result<Sample> {
    let histogram = Histogram::new_with_max(60_000_000_000, 3).map_err(io::Error::other)?;
    let mut driver = Driver {
        lane,
        seat,
        plan,
        started: vec![Instant::now(); 64],
        made: 0,
        ended: 0,
        histogram,
    };
    driver.run_for(plan.warm_up)?;
    driver.histogram.reset();
    let (ended, cpu, start) = (
        driver.ended,
        Moment::now(&[std::process::id()]),
        Instant::now(),
    );
    driver.run_for(plan.duration)?;
    let (took, cpu) = (
        start.elapsed(),
        cpu.until(&Moment::now(&[std::process::id()])),
    );
    let n = driver.ended - ended;
    Ok(Sample {
        n,
        failed: 0,
        p50_us: driver.histogram.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: driver.histogram.value_at_quantile(0.99) as f64 / 1e3,
        rps: n as f64 / took.as_secs_f64(),
        cpu_us_per_request: cpu.as_nanos() as f64 / 1e3 / n.max(1) as f64,
    })
}

struct Driver<L> {
    lane: L,
    seat: Seat,
    plan: Plan,
    started: Vec<Instant>,
    made: u64,
    ended: u64,
    histogram: Histogram<u64>,
}

impl<L: Lane> Driver<L> {
    /// Keeps as many underway as the plan says, then lets the last ones come home.
    fn run_for(&mut self, duration: Duration) -> io::Result<()> {
        let end = Instant::now() + duration;
        let mut now = Instant::now();
        while now < end || self.ended < self.made {
            while now < end && self.made - self.ended < self.plan.in_flight {
                self.started[self.made as usize % 64] = Instant::now();
                self.lane.make(self.made)?;
                self.made += 1;
            }
            self.lane.flush();
            self.lane.wait(&mut self.seat.desk, Some(STALL));
            now = self.collect()?;
        }
        Ok(())
    }

    fn collect(&mut self) -> io::Result<Instant> {
        let mut now = Instant::now();
        while let Some(item) = self.lane.take()? {
            let (number, worked) = self.lane.end(item);
            if worked != self.plan.parties - 1 {
                return Err(io::Error::other(format!(
                    "request {number} came back after {worked} parties"
                )));
            }
            now = Instant::now();
            self.histogram.saturating_record(
                now.duration_since(self.started[number as usize % 64])
                    .as_nanos() as u64,
            );
            self.ended += 1;
        }
        if self.made > self.ended
            && now.duration_since(self.started[self.ended as usize % 64]) > STALL
        {
            return Err(io::Error::other("nothing came back for seconds"));
        }
        Ok(now)
    }
}
