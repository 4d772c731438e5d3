//! `isolation: strict` from outside: a chain of two whose parties read each other's memory and cannot write it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use http::Method;
use nearpath_testkit::eventually;
use rustix::fs::{SealFlags, fcntl_get_seals};
use serde_json::{Value, json};

use crate::house::House;
use crate::shm::{ask, function, path, until_in_memory};

fn strict(house: &House, name: &str, next: Option<&str>, calls: &str) -> Value {
    let mut spec = function(house, name, next, calls);
    spec["annotations"]["nearpath.io/isolation"] = json!("strict");
    spec
}

async fn chain(house: &House) {
    house.deploy_ready(&strict(house, "second", None, "")).await;
    house.deploy_ready(&strict(house, "first", Some("second"), "second")).await;
    until_in_memory(house, "first").await;
    eventually("first knows second", async || ask(house, "first").await.status() == 200).await;
}

#[tokio::test]
async fn a_strict_chain_answers_through_memory() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house).await;
    for _ in 0..50 {
        let answer = ask(&house, "first").await;
        assert_eq!((answer.status().as_u16(), path(&answer), answer.body().len()), (200, "shm", 100));
    }
    let mut open = function(&house, "open", Some("second"), "second");
    open["annotations"]["nearpath.io/isolation"] = json!("shared");
    house.deploy_ready(&open).await;
    until_in_memory(&house, "open").await;
    let answer = ask(&house, "open").await;
    assert_eq!(answer.status(), 502, "its handler knows no other way, and the strict domain is not its own");
    let mut wrong = function(&house, "wrong", None, "");
    wrong["annotations"]["nearpath.io/isolation"] = json!("very");
    assert_eq!(house.ask(Method::POST, "/system/functions", wrong.to_string()).await.status(), 400);
}

/// One pool that a process has mapped.
struct Mapped {
    pid: i32,
    range: String,
    writable: bool,
}

impl Mapped {
    /// The pools of strict parties that a process has mapped; see proc_pid_maps(5).
    fn of(pid: i32) -> Vec<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let pools = maps.lines().filter(|line| line.contains("/memfd:nearpath-own"));
        let read = |line: &str| {
            let mut words = line.split_whitespace();
            let (range, rights) = (words.next().unwrap().to_owned(), words.next().unwrap());
            assert!(rights.ends_with('s') && rights.starts_with('r'), "{line}");
            Self { pid, range, writable: rights.contains('w') }
        };
        pools.map(read).collect()
    }

    fn start(&self) -> u64 {
        u64::from_str_radix(self.range.split('-').next().unwrap(), 16).unwrap()
    }

    /// Writes a byte over itself as the process would, whatever the page table says: a debugger's write, which a shared
    /// mapping refuses when it can never become writable (`mm/gup.c`, `check_vma_flags`).
    fn poke(&self) -> std::io::Result<usize> {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", self.pid))?;
        let mut byte = [0];
        memory.read_exact_at(&mut byte, self.start())?;
        memory.write_at(&byte, self.start())
    }

    fn file(&self) -> File {
        let link = format!("/proc/{}/map_files/{}", self.pid, self.range);
        OpenOptions::new().read(true).write(true).open(link).unwrap()
    }
}

#[tokio::test]
async fn nobody_writes_in_a_peers_pool_not_even_with_the_power_of_root() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house).await;
    let mut pools = Vec::new();
    for name in ["first", "second"] {
        let processes = house.processes(name).await;
        pools.extend(processes.into_iter().flat_map(Mapped::of));
    }
    let (own, peers): (Vec<_>, Vec<_>) = pools.into_iter().partition(|pool| pool.writable);
    assert!(own.len() >= 2 && peers.len() >= 3, "{} own, {} of peers", own.len(), peers.len());
    for pool in &own {
        assert_eq!(pool.poke().unwrap(), 1, "its maker writes there: the check below can succeed");
    }
    for pool in &peers {
        assert!(pool.poke().is_err(), "written through a mapping for reading: {} of {}", pool.range, pool.pid);
    }
    for pool in own.iter().chain(&peers) {
        let file = pool.file();
        let wanted = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert!(fcntl_get_seals(&file).unwrap().contains(wanted));
        assert!(file.write_at(&[0], 0).is_err() && file.set_len(0).is_err());
    }
    let answer = ask(&house, "first").await;
    assert_eq!((answer.status().as_u16(), path(&answer)), (200, "shm"), "and the chain goes on");
}
