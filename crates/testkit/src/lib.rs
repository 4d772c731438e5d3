//! Helpers for tests: counted skips, free ports, deadlines, paths of built programs, and machines
//! with links between them (feature `lab`).
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::future::Future;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

mod freezer;
#[cfg(all(feature = "lab", target_os = "linux"))]
pub mod lab;
mod log_capture;
#[cfg(all(feature = "p2p", target_os = "linux"))]
pub mod p2p;
pub mod seeded_rng;

pub use freezer::Freezer;
pub use log_capture::CapturedWarnings;

/// Ends the test early with a reason. Each skip is written to the file in `NEARPATH_SKIP_LOG`.
/// `make test` prints them and fails when there are more than `tests/skips.allowed` lists.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::note_skip(module_path!(), &format!($($reason)*));
        return;
    }};
}

/// Returns from the test with a noted skip unless it runs as root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::is_root() {
            $crate::skip!("needs root: namespaces, cgroups or mounts")
        }
    };
}

/// Returns the value of a result. Returns from the test with a noted skip where the machine or the build lacks
/// the facility (`Unsupported`, `PermissionDenied`); any other error fails the test.
#[macro_export]
macro_rules! need_support {
    ($result:expr) => {
        match $result {
            Err(why)
                if matches!(
                    why.kind(),
                    std::io::ErrorKind::Unsupported | std::io::ErrorKind::PermissionDenied
                ) =>
            {
                $crate::skip!("the machine or the build lacks a facility: {why}")
            }
            result => result.unwrap(),
        }
    };
}

#[doc(hidden)]
pub fn note_skip(place: &str, reason: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    eprintln!("SKIP {place} {test}: {reason}");
    let Some(path) = std::env::var_os("NEARPATH_SKIP_LOG") else {
        return;
    };
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    // One write: lines of test processes that run side by side must not mix.
    let line = format!("{place} {test}: {reason}\n");
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("a skip that cannot be noted would be silent");
}

/// Copies a program that is to be started from there.
///
/// By a process of its own: as long as a file is open for writing somewhere, it cannot be started
/// (`ETXTBSY`), and what this process has open another thread may just be handing to a child.
///
/// # Panics
/// When it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = std::process::Command::new("cp")
        .args([from.as_ref(), to.as_ref()])
        .status();
    assert!(
        copied.expect("there is a cp").success(),
        "{} was not copied",
        from.as_ref().display()
    );
}

/// Locks `folder`, which tests in several processes prepare and share, until the returned file is
/// dropped.
///
/// The lock is a file beside the folder. It blocks the calling thread.
///
/// # Panics
/// When the file cannot be created or locked.
pub fn lock_shared_folder(folder: &Path) -> std::fs::File {
    let file =
        std::fs::File::create(folder.with_extension("lock")).expect("the lock file is created");
    file.lock().expect("the lock is taken");
    file
}

/// Returns true if the effective user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A loopback address that is free for TCP and UDP, and that no other call in this process returns.
///
/// Taken from below the ports that Linux gives to outgoing connections (`ip_local_port_range`, from
/// 32768 on): one of those could be anybody's by the time a program of the test binds it.
pub fn free_addr() -> SocketAddr {
    const PORTS: std::ops::Range<u32> = 16_384..32_768;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // test processes that run in parallel start at distant ports
    let first = std::process::id().wrapping_mul(61);
    let free = |addr: &SocketAddr| TcpListener::bind(addr).is_ok() && UdpSocket::bind(addr).is_ok();
    let candidate = |_| {
        let port = PORTS.start
            + first.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32;
        SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16))
    };
    PORTS
        .map(candidate)
        .find(free)
        .expect("a free loopback port")
}

/// Runs `what` to its end, or fails the test after 30 s: a hang becomes a failure with a name.
pub async fn within<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), what)
        .await
        .expect("the test hung for 30 s")
}

/// Time between two checks of [`eventually`] and [`read_until`].
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Checks in 30 s.
const MAX_CHECKS: u32 = 6_000;

/// Waits until `ready` returns true, checking every 5 ms for at most 30 s. For states that are not
/// announced.
///
/// # Panics
/// When it does not become true.
pub async fn eventually(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    for _ in 0..MAX_CHECKS {
        if ready().await {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    panic!("not within 30 s: {what}");
}

/// Does the same as [`eventually`] and blocks the calling thread, for tests without a runtime.
///
/// # Panics
/// When it does not become true.
pub fn eventually_blocking(what: &str, ready: impl FnMut() -> bool) {
    read_until(what, ready, |ready| *ready);
}

/// Reads a value every 5 ms for at most 30 s until it is `enough`, and returns it. Blocks the
/// calling thread.
///
/// # Panics
/// When it does not become enough; the message shows the last value.
pub fn read_until<T: Debug>(
    what: &str,
    mut read: impl FnMut() -> T,
    enough: impl Fn(&T) -> bool,
) -> T {
    let mut value = read();
    for _ in 0..MAX_CHECKS {
        if enough(&value) {
            return value;
        }
        std::thread::sleep(CHECK_INTERVAL);
        value = read();
    }
    panic!("not within 30 s: {what}; last: {value:?}");
}

/// Path of a program of this workspace that was built with the running test (`nearpath`,
/// `nearpath-watchdog`). Panics with instructions if it was not built.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing: `make test` builds it first, or run `cargo build --workspace`",
        path.display()
    );
    path
}
