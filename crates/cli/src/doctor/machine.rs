//! The environment of `nearpath up`: programs, folders, limits.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nearpath_server::INSTANCE_PATH;
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

use super::Check;

/// With less free space the store may soon be unable to write.
const MIN_FREE_BYTES: u64 = 100 << 20;
/// Each waiting request and each instance needs some descriptors; the usual soft limit of 1024 is
/// too low.
const MIN_OPEN_FILES: u64 = 4_096;
/// The oldest kernel in the tests.
const OLDEST_TESTED_KERNEL: (u32, u32) = (5, 15);
const OTHER_DATA_DIR: &str = "choose another with `up --data-dir` or NEARPATH_DATA_DIR";

pub(super) fn checks(data_dir: &Path) -> Vec<Check> {
    vec![
        kernel_check(),
        watchdog_check(),
        data_dir_check(data_dir),
        disk_space_check(data_dir),
        open_files_check(),
        python_check(),
    ]
}

fn kernel_check() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    // `6.18.0-rc1-custom` → 6, 18, …
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version >= OLDEST_TESTED_KERNEL {
        // Older kernels only warn: distributions backport what matters, and the checks below
        // measure it.
        true => Check::ok("kernel", format!("Linux {release}")),
        false => Check::warn(
            "kernel",
            format!("Linux {release}"),
            "not tested",
            "use Linux 5.15 or newer",
        ),
    }
}

fn watchdog_check() -> Check {
    let from_env = std::env::var_os("NEARPATH_WATCHDOG").map(PathBuf::from);
    let next_to_exe = || {
        std::env::current_exe()
            .map(|exe| exe.with_file_name("nearpath-watchdog"))
            .unwrap_or_default()
    };
    let path = from_env.unwrap_or_else(next_to_exe);
    let is_program = path
        .metadata()
        // The file must be executable for someone; the sandbox decides under which user it runs.
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    let found = path.display().to_string();
    match is_program {
        true => Check::ok("watchdog", found),
        false => {
            let remedy =
                "run `make build`, or set the path with NEARPATH_WATCHDOG or `up --watchdog`";
            Check::fatal(
                "watchdog",
                format!("{found} is missing or not executable"),
                "no function can start",
                remedy,
            )
        }
    }
}

fn data_dir_check(data_dir: &Path) -> Check {
    let name = "data directory";
    // `up` creates missing folders, so only the nearest existing one has to be writable.
    let existing = existing_ancestor(data_dir);
    let found = match existing == data_dir {
        true => data_dir.display().to_string(),
        false => format!("{} (will be created)", data_dir.display()),
    };
    let effect = "no state can be stored";
    // The kernel decides: mode bits alone ignore root, ACLs and read-only mounts.
    match access(existing, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if existing.is_dir() => Check::ok(name, found),
        Ok(()) => Check::fatal(
            name,
            format!("{} is not a folder", existing.display()),
            effect,
            OTHER_DATA_DIR,
        ),
        Err(error) => Check::fatal(
            name,
            format!("{}: {error}", existing.display()),
            effect,
            OTHER_DATA_DIR,
        ),
    }
}

fn disk_space_check(data_dir: &Path) -> Check {
    let name = "disk space";
    let Ok(fs) = statvfs(existing_ancestor(data_dir)) else {
        return Check::warn(
            name,
            "unknown",
            "a full disk is not detected in advance",
            OTHER_DATA_DIR,
        );
    };
    // f_bavail excludes blocks reserved for root: a user would not get them.
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let found = format!("{} MiB free", free >> 20);
    match free >= MIN_FREE_BYTES {
        true => Check::ok(name, found),
        false => Check::warn(
            name,
            found,
            "a full disk blocks all changes",
            "free space below the data directory",
        ),
    }
}

/// The folder, or its nearest ancestor that exists.
fn existing_ancestor(path: &Path) -> &Path {
    path.ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("."))
}

fn open_files_check() -> Check {
    // The soft limit: the kernel enforces this one. `None` means unlimited.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let found = if limit == u64::MAX {
        "no limit".to_owned()
    } else {
        limit.to_string()
    };
    match limit >= MIN_OPEN_FILES {
        true => Check::ok("open files", found),
        false => {
            let effect = "connections beyond the limit are refused";
            Check::warn(
                "open files",
                found,
                effect,
                "raise it: `ulimit -n 65536`, or LimitNOFILE= in a systemd unit",
            )
        }
    }
}

fn python_check() -> Check {
    // Not $PATH: instances see the system's folders only, so a python3 in a user's home is of no
    // use to them.
    let mut candidates = std::env::split_paths(INSTANCE_PATH).map(|folder| folder.join("python3"));
    match candidates.find(|python| python.is_file()) {
        Some(python) => Check::ok("python3", python.display().to_string()),
        None => {
            let effect = "functions in Python and `make demo` do not run";
            Check::warn(
                "python3",
                format!("not in {INSTANCE_PATH}"),
                effect,
                "apt-get install python3",
            )
        }
    }
}
