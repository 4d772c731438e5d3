//! The first endpoint of a ring: it creates items and measures their round trips.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::bare::BareLane;
use super::endpoint::pin_thread;
use super::message::MessageLane;
use super::sockmap::SockmapLane;
use super::{EndpointRing, RingEndpoint, RingLane, RingVariant};
use crate::compare::RoundSample;
use crate::cpu::CpuSnapshot;

/// Time without progress after which a ring counts as broken.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Shape of a ring, and the length of its measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingPlan {
    pub(crate) endpoints: u16,
    /// Number of processors: endpoints alternate between two, or share one.
    pub(crate) cores: usize,
    pub(crate) in_flight: u64,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
}

/// Starts the other endpoints, measures, and stops them.
pub(crate) fn measure_ring(plan: RingPlan, variant: RingVariant) -> io::Result<RoundSample> {
    // Restored below: the next variant, or comparison, may need all processors.
    let before = sched_getaffinity(None)?;
    // This endpoint is number 0 and takes the first processor, as `spawn_endpoint` computes for the
    // others.
    pin_thread(&[0])?;
    let outcome = run_ring(plan, variant);
    pin_thread(
        &(0..CpuSet::MAX_CPU)
            .filter(|&core| before.is_set(core))
            .collect::<Vec<_>>(),
    )?;
    outcome
}

fn run_ring(plan: RingPlan, variant: RingVariant) -> io::Result<RoundSample> {
    let ring = EndpointRing::create(plan.endpoints, variant)?;
    let mut others = (1..plan.endpoints)
        .map(|k| spawn_endpoint(&ring, k, plan, variant))
        .collect::<io::Result<Vec<_>>>()?;
    let mut fds = ring
        .endpoint_fds(0)
        .into_iter()
        .map(|fd| fd.try_clone_to_owned())
        .collect::<io::Result<Vec<_>>>()?;
    let endpoint = RingEndpoint::open(&mut fds.drain(..), 0, plan.endpoints, variant)?;
    let sample = match variant {
        RingVariant::Bare => drive_lane(BareLane::new(&endpoint)?, endpoint, plan),
        RingVariant::Sockmap => drive_lane(SockmapLane::new(&endpoint)?, endpoint, plan),
        _ => drive_lane(MessageLane::new(&endpoint), endpoint, plan),
    };
    // Before the waits: the others end only when a channel closes.
    ring.close_all();
    for other in &mut others {
        if sample.is_err() {
            let _ = other.kill(); // it may hang as the circle does
        }
        other.wait()?;
    }
    sample
}

fn spawn_endpoint(
    ring: &EndpointRing,
    index: u16,
    plan: RingPlan,
    variant: RingVariant,
) -> io::Result<Child> {
    // Copies without close-on-exec, for as long as it takes to start the child.
    let copies = ring
        .endpoint_fds(index.into())
        .into_iter()
        .map(rustix::io::dup)
        .collect::<Result<Vec<OwnedFd>, _>>()?;
    let numbers: Vec<String> = copies.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let name = clap::ValueEnum::to_possible_value(&variant).expect("no variant is hidden");
    Command::new(std::env::current_exe()?)
        .args([
            "ring-endpoint",
            "--variant",
            name.get_name(),
            "--fds",
            &numbers.join(","),
        ])
        .args([
            "--index",
            &index.to_string(),
            "--of",
            &plan.endpoints.to_string(),
        ])
        .args(["--core", &(usize::from(index) % plan.cores).to_string()])
        .spawn()
}

fn drive_lane(
    lane: impl RingLane,
    endpoint: RingEndpoint,
    plan: RingPlan,
) -> io::Result<RoundSample> {
    let histogram = Histogram::new_with_max(60_000_000_000, 3).map_err(io::Error::other)?;
    let mut driver = LaneDriver {
        lane,
        endpoint,
        plan,
        // As many places as the ring has (RING_CAPACITY), so an index is free when its number
        // returns.
        started: vec![Instant::now(); 64],
        made: 0,
        ended: 0,
        histogram,
    };
    driver.run_for(plan.warm_up)?;
    // Latencies of the warm-up are dropped; the counts go on, so a difference is taken.
    driver.histogram.reset();
    let (ended, cpu, start) = (
        driver.ended,
        CpuSnapshot::read_now(&[std::process::id()]),
        Instant::now(),
    );
    driver.run_for(plan.duration)?;
    let (took, cpu) = (
        start.elapsed(),
        cpu.spent_until(&CpuSnapshot::read_now(&[std::process::id()])),
    );
    let n = driver.ended - ended;
    Ok(RoundSample {
        n,
        failed: 0,
        p50_us: driver.histogram.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: driver.histogram.value_at_quantile(0.99) as f64 / 1e3,
        rps: n as f64 / took.as_secs_f64(),
        cpu_us_per_request: cpu.as_nanos() as f64 / 1e3 / n.max(1) as f64,
    })
}

struct LaneDriver<L> {
    lane: L,
    endpoint: RingEndpoint,
    plan: RingPlan,
    started: Vec<Instant>,
    made: u64,
    ended: u64,
    histogram: Histogram<u64>,
}

impl<L: RingLane> LaneDriver<L> {
    /// Keeps the planned number of items in flight, then collects the last ones.
    fn run_for(&mut self, duration: Duration) -> io::Result<()> {
        let end = Instant::now() + duration;
        let mut now = Instant::now();
        while now < end || self.ended < self.made {
            // Refilled before sleeping, so that the number in flight is constant.
            while now < end && self.made - self.ended < self.plan.in_flight {
                self.started[self.made as usize % 64] = Instant::now();
                self.lane.make_item(self.made)?;
                self.made += 1;
            }
            self.lane.flush_batch();
            self.lane
                .wait_ready(&mut self.endpoint.wakeup, Some(STALL_TIMEOUT));
            now = self.collect_items()?;
        }
        Ok(())
    }

    fn collect_items(&mut self) -> io::Result<Instant> {
        let mut now = Instant::now();
        while let Some(item) = self.lane.take_item()? {
            let (number, worked) = self.lane.finish_item(item);
            // Not a statistic but a check: an endpoint that skips its work would win the
            // comparison.
            if worked != self.plan.endpoints - 1 {
                return Err(io::Error::other(format!(
                    "request {number} returned after {worked} endpoints"
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
            && now.duration_since(self.started[self.ended as usize % 64]) > STALL_TIMEOUT
        {
            return Err(io::Error::other(
                "no request returned within the stall timeout",
            ));
        }
        Ok(now)
    }
}
