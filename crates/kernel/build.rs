//! Compiles the programs of `bpf/` with clang.
//!
//! Without clang the build succeeds; features that need BPF then report its absence.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 8] = [
    "direct_peers",
    "sk_msg",
    "sock_guard",
    "sock_loopback",
    "sock_peer",
    "sock_window",
    "tc_forward",
    "vip",
];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(nearpath_bpf)");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed=../../bpf");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiled: Result<Vec<()>, String> = SOURCES
        .into_iter()
        .map(|name| compile(name, &out))
        .collect();
    match compiled {
        Ok(_) => println!("cargo::rustc-cfg=nearpath_bpf"),
        Err(error) => {
            println!(
                "cargo::warning=BPF programs are missing, so `sockmap` and forwarding are unavailable: {error}"
            )
        }
    }
}

fn compile(name: &str, out: &Path) -> Result<(), String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch =
        std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target's architecture");
    let mut command = Command::new(&clang);
    command.args([
        // -g: the maps' types are in the BTF, which the tests compare with the Rust types. cpu v3
        // (Linux 5.1) has 32-bit jumps.
        "-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-mcpu=v3",
    ]);
    // Debian's <asm/types.h> is in a directory of the host's architecture, which clang skips for
    // another target.
    command.arg(format!("-I/usr/include/{arch}-linux-gnu"));
    command
        .arg("-c")
        .arg(format!("../../bpf/{name}.c"))
        .arg("-o")
        .arg(out.join(format!("{name}.o")));
    let output = command
        .output()
        .map_err(|error| format!("{clang}: {error}; install clang"))?;
    let message = || String::from_utf8_lossy(&output.stderr).replace('\n', " ");
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "{clang} failed to compile bpf/{name}.c: {}",
            message()
        ))
    }
}
