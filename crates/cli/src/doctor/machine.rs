//! What `nearpath up` needs around it: programs, folders, limits.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nearpath_node::instance::variables::PATH;
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

use super::Check;

/// Below this the store may not be able to write.
const LITTLE_SPACE: u64 = 100 << 20;
/// Each waiting request and each instance needs some descriptors.
const FEW_FILES: u64 = 4_096;
/// The oldest kernel that is tested.
const OLDEST: (u32, u32) = (5, 15);

pub(super) fn checks(data_dir: &Path) -> Vec<Check> {
    vec![kernel(), watchdog(), folder(data_dir), space(data_dir), files(), python()]
}

fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version >= OLDEST {
        true => Check::ok("kernel", format!("Linux {release}")),
        false => Check::warn("kernel", format!("Linux {release}"), "nobody tests it here", "use Linux 5.15 or newer"),
    }
}

fn watchdog() -> Check {
    let given = std::env::var_os("NEARPATH_WATCHDOG").map(PathBuf::from);
    let beside = || std::env::current_exe().map(|exe| exe.with_file_name("nearpath-watchdog")).unwrap_or_default();
    let path = given.unwrap_or_else(beside);
    let runs = path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    let found = path.display().to_string();
    match runs {
        true => Check::ok("watchdog", found),
        false => {
            let advice =
                "`make build` puts it beside nearpath; NEARPATH_WATCHDOG or `up --watchdog` names another place";
            Check::fatal("watchdog", format!("{found} is missing or not executable"), "no function can start", advice)
        }
    }
}

fn folder(data_dir: &Path) -> Check {
    let name = "data directory";
    let there = existing(data_dir);
    let found = match there == data_dir {
        true => data_dir.display().to_string(),
        false => format!("{} (will be made)", data_dir.display()),
    };
    match access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if there.is_dir() => Check::ok(name, found),
        Ok(()) => Check::fatal(name, format!("{} is not a folder", there.display()), "no state can be kept", CHOOSE),
        Err(error) => Check::fatal(name, format!("{}: {error}", there.display()), "no state can be kept", CHOOSE),
    }
}

const CHOOSE: &str = "choose another with `up --data-dir` or NEARPATH_DATA_DIR";

fn space(data_dir: &Path) -> Check {
    let name = "disk space";
    let Ok(fs) = statvfs(existing(data_dir)) else {
        return Check::warn(name, "not known", "a full disk is not foreseen", CHOOSE);
    };
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let found = format!("{} MiB free", free >> 20);
    match free >= LITTLE_SPACE {
        true => Check::ok(name, found),
        false => Check::warn(name, found, "on a full disk no change is accepted", "make room below the data directory"),
    }
}

/// The folder or the nearest one above it that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."))
}

fn files() -> Check {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let found = if limit == u64::MAX { "no limit".to_owned() } else { limit.to_string() };
    match limit >= FEW_FILES {
        true => Check::ok("open files", found),
        false => {
            let lost = "connections are refused when as many are open";
            Check::warn("open files", found, lost, "raise it: `ulimit -n 65536`, or LimitNOFILE= in a systemd unit")
        }
    }
}

/// Instances see the system's folders only: a python3 in somebody's home is of no use to them.
fn python() -> Check {
    let mut pythons = std::env::split_paths(PATH).map(|folder| folder.join("python3"));
    match pythons.find(|python| python.is_file()) {
        Some(python) => Check::ok("python3", python.display().to_string()),
        None => {
            let lost = "functions in Python and `make demo` do not run";
            Check::warn("python3", format!("not in {PATH}"), lost, "apt-get install python3")
        }
    }
}
